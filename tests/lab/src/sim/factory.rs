//! Creates the instances of a simulation.

use std::sync::Arc;

use super::crate_processor::CrateProcessor;
use super::foreign::Foreign;
use super::host::InstanceKind;
use super::plan::Role;

/// Maps roles to kinds of instances.
pub trait InstanceFactory: Send + Sync {
    /// Returns the kind of instance for this role.
    fn kind_of(&self, role: Role) -> Arc<dyn InstanceKind>;
}

/// The built-in instances: this crate's processor and the foreign owners. A guest is played by this crate's processor.
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
