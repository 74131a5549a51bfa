//! The [rules of the store](eventhubs_checkpoint::internal::rules) and the
//! [state of the balancer](eventhubs_checkpoint::internal::balancer::State), explored in every order of events.
//!
//! # What is explored
//!
//! One partition: its ownership blob, its checkpoint blob, and up to three instances that work on them. Every request
//! is one step, and between any two steps everybody else may do anything, so an instance may be paused anywhere for any
//! time. A conditional write may be answered, or lost, or applied without an answer, or applied at any later time;
//! reads may fail; instances crash, freeze, shut down, or start a second time under the same name; another SDK is
//! active in the group; a blob is deleted; one or two operators [reset](operator) the checkpoint; a start is pinned after
//! owners on the official processor, or with names in the other letter case, have started. A [scenario](scenario) lists
//! the instances and limits the faults.
//!
//! What the instances decide is not written down here a second time. Every answer goes to the very rules that the
//! store asks (`after_doubt`, `next_epoch`, `adopting`, `checkpointing`, `marking`, `Handoff`). Every listing and every
//! outcome goes to the real [`State`](eventhubs_checkpoint::internal::balancer::State) of a balancer: [`driven`] brings
//! one into the condition of the instance and feeds it, and [`balancer`] caches the reaction, because the search repeats
//! the same few conditions. [`reactions`] tests the reactions that the exploration assumes without a lookup.
//!
//! Written down here is only what surrounds them: in [`ownership`] and [`handoff`] the requests of the store, one by
//! one, in [`work`] what the processor does, in [`operator`] the steps of `admin::Operator` after its real decision how to
//! take a partition over, in [`epochs`] what time the server shows, in [`pinner`] what `store::pin` does. Leases that
//! live by a presence have a system of their own: [`presence`].
//!
//! Every state is visited once, the nearest first, so that the trace to a violation is a shortest one. Where a scenario
//! asks for it, it is also shown that from every state some way without further faults leads to an owner that gets on
//! ("always possibly eventually"). That is why this is not done with the crate `stateright`: its "eventually" speaks of
//! all ways, and holds of none on which faults may go on or somebody is paused for ever.
//!
//! # What is not
//!
//! - Time, but for epochs. Whether a record is young, old or expired is a choice, within the scenario's
//!   [timing](scenario::Timing).
//! - How often an operation tries again. Here it is without end; in the store it ends with `Contended`, and begins
//!   anew.
//! - More than one partition. Owners of this crate in the other tree of names, and more than one owner there.
//! - A listing whose answer is late: what it says is acted upon at once, except that the claim that follows may come at
//!   any time.
//! - The memory of a balancer beyond the condition of its partition: waits after a failure, outages, what it planned in
//!   the last cycle. Each reaction is that of a fresh state.
//! - An operator that renews its ownership while it waits for another SDK: here a loss is met by its next write. How
//!   long it waits: here until that SDK is silent.
//! - An asking instance that its owner takes for dead, and whose mark it takes away. Here an owner heeds every mark.
//! - A write that would create a blob, and that is still under way when the blob was created otherwise and then
//!   deleted. Nothing in the records would tell it from the write of today.
//! - A checkpoint that is read before the claim, which would save a request. The store does not do that.
//! - That the place to start moves, which is why a start is pinned at all. And how long a lease found by reading is
//!   valid, which is why an old one is written anew.
//!
//! # To read a trace
//!
//! `cargo test --lib exploration -- --nocapture` prints how much each scenario explored, and for each rule that is left
//! out the shortest way to the violation. Each line is one step: who, what, and for a write what became of it. `done`
//! and `refused` are answers; `no answer, under way` lands in a later line, or never.
//!
//! # To add a rule
//!
//! Put the decision into `store::rules`, and feed it from here as the store does. A decision of the balancer needs a
//! [stimulus](balancer::Stimulus), and perhaps a [condition](balancer::Condition). Add what must hold as an
//! [invariant](notes::Invariant), and what must have been explored as an [event](notes::Event). Then add a
//! [`Rule`](scenario::Rule) to be left out, by a lie to the rule or to the balancer or by a step not taken, and a test in
//! [`needed`] that shows what happens then.

mod balancer;
mod canonical;
mod clean;
mod driven;
mod epochs;
mod foreign;
mod handoff;
mod handoffs;
mod listing;
mod needed;
mod notes;
mod operator;
mod ownership;
mod pinner;
mod pins;
mod presence;
mod reactions;
mod resets;
mod scenario;
mod search;
mod state;
mod storage;
mod system;
mod work;
