//! In-process.
