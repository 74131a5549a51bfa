//! A process that uses a whole core: `chaos cpu-load`.

use std::hint::black_box;

use crate::chaos::child;

/// Runs until the runner is gone or kills it.
pub fn run() -> ! {
    child::exit_with_parent();
    let mut number = 0_u64;
    loop {
        number = black_box(number.wrapping_mul(31).wrapping_add(7));
    }
}
