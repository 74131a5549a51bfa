//! Defects of the credentials that were found in review: each test failed before its defect was fixed. Names begin with
//! the number of the finding.

mod keys;
mod tokens;
