//! Pages of List Blobs: the parser and a tree of the page agree.

#![no_main]

use eventhubs_checkpoint::internal::azure::find_difference;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| assert_eq!(find_difference(body), None));
