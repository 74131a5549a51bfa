//! Instances and their incarnations: an instance that was killed and restarted is the same instance in another
//! incarnation.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Stands for the instance of every operator: operators are not members of the group.
const OPERATORS: u32 = u32::MAX;

/// One process of one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct IncarnationId {
    pub instance: u32,
    /// From 1.
    pub number: u32,
}

impl IncarnationId {
    /// Returns the id of an operator, which has one incarnation.
    pub fn of_operator(number: u32) -> Self {
        Self { instance: OPERATORS, number }
    }

    pub fn is_operator(self) -> bool {
        self.instance == OPERATORS
    }

    /// Returns the owner ID, which all incarnations of an instance share.
    pub fn owner(self) -> String {
        owner(self.instance)
    }
}

pub fn owner(instance: u32) -> String {
    if instance == OPERATORS { "operator".to_owned() } else { format!("i{}", instance + 1) }
}

impl fmt::Display for IncarnationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.owner(), self.number)
    }
}
