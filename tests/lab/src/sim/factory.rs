//! Who takes part in a simulation.

use std::sync::Arc;

use super::crate_processor::CrateProcessor;
use super::foreign::Foreign;
use super::host::InstanceKind;
use super::plan::Role;

/// Who plays which role.
pub trait InstanceFactory: Send + Sync {
    /// The kind for this role.
    fn kind_of(&self, role: Role) -> Arc<dyn InstanceKind>;
}

/// Our processor, and the foreign owners that are built in. A guest is played by our processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct BuiltIn;

impl InstanceFactory for BuiltIn {
    fn kind_of(&self, role: Role) -> Arc<dyn InstanceKind> {
        match role {
            Role::Foreign(sdk) => Arc::new(Foreign::like(sdk)),
            Role::CrateProcessor | Role::Guest(_) => Arc::new(CrateProcessor),
        }
    }
}
