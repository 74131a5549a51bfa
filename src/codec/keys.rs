//! The keys of the metadata.

// Keys that all SDKs know.
pub(super) const OWNER_ID: &str = "ownerid";
pub(super) const SEQUENCE_NUMBER: &str = "sequencenumber";
pub(super) const OFFSET: &str = "offset";

// Keys of this crate. They begin with `ehc`, so that no key of another program has the same name; without a hyphen or an
// underscore, which some proxies drop.
pub(super) const INCARNATION: &str = "ehcincarnation";
pub(super) const CLAIMED_AT: &str = "ehcclaimedat";
pub(super) const EPOCH: &str = "ehcepoch";
pub(super) const UPDATED_AT: &str = "ehcupdatedat";
pub(super) const INITIAL: &str = "ehcinitial";
pub(super) const HUB_CREATED: &str = "ehchubcreated";
pub(super) const LOAD: &str = "ehcload";
pub(super) const COOPERATIVE: &str = "ehccooperative";
pub(super) const HANDOFF_TO: &str = "ehchandoffto";
pub(super) const OPERATOR: &str = "ehcoperator";
pub(super) const DRAINING: &str = "ehcdraining";
pub(super) const AWAY: &str = "ehcaway";
pub(super) const LEASE_SCOPE: &str = "ehcleasescope";
pub(super) const DECLARED_DEAD_BY: &str = "ehcdeclareddeadby";
pub(super) const LEASE_DURATION: &str = "ehcleaseduration";

/// The value of a flag. Without the flag the key is absent.
pub(super) const YES: &str = "1";
pub(super) const SCOPE_INSTANCE: &str = "instance";
