//! Who takes part in a simulation.

use std::sync::Arc;

use super::foreign::Foreign;
use super::host::Kind;
use super::ours::Ours;
use super::plan::Role;

/// Who plays which role.
pub trait Cast: Send + Sync {
    /// The kind for this role.
    fn kind_of(&self, role: Role) -> Arc<dyn Kind>;
}

/// Our processor, and the foreign owners that are built in. A guest is played by our processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usual;

impl Cast for Usual {
    fn kind_of(&self, role: Role) -> Arc<dyn Kind> {
        match role {
            Role::Foreign(sdk) => Arc::new(Foreign::like(sdk)),
            Role::Ours | Role::Guest(_) => Arc::new(Ours),
        }
    }
}
