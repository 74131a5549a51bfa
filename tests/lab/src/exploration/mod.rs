//! The [rules of the store](eventhubs_checkpoint::internal::rules) and the
//! [state of the balancer](eventhubs_checkpoint::internal::balancer::BalancerState), explored in every order of events.
//!
//! # What is explored
//!
//! One partition: its ownership blob, its checkpoint blob, and up to three instances that work on them. Every request
//! is one step, and between any two steps every other participant may do anything, so an instance may be paused
//! anywhere for any time. A conditional write may get a response, be lost, be applied without a response, or be applied
//! at any later time; reads may fail; instances crash, freeze, stop gracefully, or start a second time with the same
//! name; another SDK works on the same partition; a blob is deleted; one or two operators [reset](operator) the
//! checkpoint, or pause and resume the partition; a start is pinned (written as an initial checkpoint) after owners on
//! the official processor have begun. A [scenario](scenario) defines the participants and the number of faults.
//!
//! The decisions of the instances are not implemented a second time. The values that the store uses decide which
//! request of an operation is next, and what its response means: `OwnershipOperation`, `AdoptionStep`,
//! `CheckpointStep`, `Handoff`. `ResetProgress` decides what an operator does next. Every listing and every outcome
//! goes to the real [`BalancerState`](eventhubs_checkpoint::internal::balancer::BalancerState): [`driven`] brings one
//! into the condition of the instance and feeds it, and [`balancer`] caches the reaction, because the search reaches
//! the same few conditions repeatedly. Assumptions about reactions that the exploration does not look up are tested in
//! [`reactions`].
//!
//! Only the surroundings are implemented here: in [`ownership`], [`handoff`] and [`work`] what each request does to the
//! blobs, and the processor, in [`operator`] what a listing shows an operator, in [`epochs`] the server's time, in
//! [`pinner`] the steps of `GroupStore::init_checkpoint`. Leases that a heartbeat keeps alive have their own system:
//! [`heartbeat`].
//!
//! Every state is visited once, in breadth-first order, so that the trace to a violation is a shortest one. If a
//! scenario requires it, the exploration also shows that from every state some path without further faults leads to an
//! owner that makes progress ("always possibly eventually"). For this reason the crate `stateright` is not used: its
//! "eventually" covers all paths, and holds for none on which faults continue or an instance is paused forever.
//!
//! # What is not explored
//!
//! - Time, except for epochs. Whether a record is fresh, old or expired is a choice, within the scenario's
//!   [timing](scenario::Timing).
//! - How often an operation retries. Here it retries without limit; in the store it ends with `Contended`, and begins
//!   again.
//! - More than one partition, and the other blob-name casing: no instance reads a record there after its first claim.
//! - A listing whose response is late: its content takes effect at once, except that the claim that follows may come at
//!   any time.
//! - The memory of a balancer beyond the condition of its partition: waits after a failure, outages, the plan of the
//!   last cycle. Each reaction is that of a fresh state.
//! - How long an operator waits for another SDK: here until that SDK is silent. It renews nothing meanwhile, but may
//!   find out that it lost the partition.
//! - A requester that its owner considers dead, and whose handoff request it removes. Here an owner accepts every
//!   request.
//! - A write that would create a blob, and that is still in progress when the blob was created otherwise and then
//!   deleted. Nothing in the records distinguishes it from a current write.
//! - A checkpoint that is read before the claim, which would save a request. The store does not do that.
//! - A moving start position, which is the reason to pin a start at all. And how long a lease found by reading is
//!   valid, which is the reason to rewrite an old one.
//!
//! # How to read a trace
//!
//! `cargo test --lib exploration -- --nocapture` prints how much each scenario explored, and for each disabled rule the
//! shortest path to the violation. Each line is one step: the participant, the action, and for a write its result.
//! `done` and `refused` are responses; `no response, in progress` lands in a later line, or never.
//!
//! # How to add a rule
//!
//! Put the decision into `store::rules`, and feed it from here as the store does. A decision of the balancer needs a
//! [stimulus](balancer::Stimulus), and perhaps a [condition](balancer::Condition). Add what must hold as an
//! [invariant](notes::Invariant), and what must have been explored as an [event](notes::Event). Then add a
//! [`Rule`](scenario::Rule) that can be disabled, by an altered input to the rule or to the balancer or by a skipped
//! step, and a test in [`needed`] that shows the consequence. If a scenario fails because it visits a step that is not
//! listed, add the line that the test prints to `src/explored/steps.txt`.

mod balancer;
mod canonical;
mod clean;
mod driven;
mod epochs;
mod foreign;
mod handoff;
mod handoffs;
mod heartbeat;
mod listing;
mod needed;
mod notes;
mod observed;
mod operator;
mod ownership;
mod paused;
mod pinner;
mod pins;
mod reactions;
mod resets;
mod scenario;
mod search;
mod state;
mod storage;
mod system;
mod work;
