//! Counts requests to the storage by the type that Azure bills.

use std::sync::{Arc, Mutex};

use eventhubs_checkpoint::cost::BilledRequests;
use eventhubs_checkpoint::internal::lock::lock;
use eventhubs_checkpoint::store::BillingType;

/// Requests that were sent. Clones share the same counts.
#[derive(Clone, Debug, Default)]
pub struct Bill(Arc<Mutex<BilledRequests>>);

impl Bill {
    pub fn add(&self, billing: BillingType) {
        let mut requests = lock(&self.0);
        match billing {
            BillingType::List => requests.list += 1.0,
            BillingType::Write => requests.write += 1.0,
            BillingType::Other => requests.other += 1.0,
            // Deletions are free.
            _ => {}
        }
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> BilledRequests {
        *lock(&self.0)
    }

    /// Returns the requests since the last call, and starts again from zero.
    pub fn take(&self) -> BilledRequests {
        std::mem::take(&mut *lock(&self.0))
    }
}
