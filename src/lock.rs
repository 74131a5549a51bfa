//! Locks that ignore poison: a panic in one task does not stop the others.

use std::sync::{Mutex, MutexGuard, PoisonError};
#[cfg(any(feature = "azure", feature = "testing-amqp"))]
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks it, whether it is poisoned or not.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks it, whether it is poisoned or not.
#[cfg(any(feature = "azure", feature = "testing-amqp"))]
pub fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks it, whether it is poisoned or not.
#[cfg(any(feature = "azure", feature = "testing-amqp"))]
pub fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
