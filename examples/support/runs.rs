//! Runs of sequence numbers.

/// Returns successive numbers as pairs of first and last.
pub(crate) fn runs(numbers: impl IntoIterator<Item = i64>) -> Vec<(i64, i64)> {
    let mut runs: Vec<(i64, i64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successive_numbers_are_one_run() {
        assert_eq!(runs([4, 5, 6, 9, 2, 3]), [(4, 6), (9, 9), (2, 3)]);
        assert!(runs([]).is_empty());
    }
}
