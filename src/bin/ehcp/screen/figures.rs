//! Numbers as text.

use std::fmt::Display;
use std::time::Duration;

use time::OffsetDateTime;

const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The cells of a bar.
const BAR_WIDTH: usize = 8;

/// Returns a number with groups of three digits.
pub fn group_digits(number: impl Display) -> String {
    let text = format!("{number}");
    let (sign, digits) = text.split_at(text.find(|letter: char| letter.is_ascii_digit()).unwrap_or_default());
    let mut grouped = sign.to_owned();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// Returns events per second: whole ones, or one decimal of a small number.
pub fn format_rate(rate: f64) -> String {
    if rate.abs() < 9.95 && rate != 0.0 { format!("{rate:.1}") } else { group_digits(format!("{:.0}", rate + 0.0)) }
}

/// Returns the time of day, in UTC.
pub fn format_clock(time: OffsetDateTime) -> String {
    let (hour, minute, second) = time.to_offset(time::UtcOffset::UTC).to_hms();
    format!("{hour:02}:{minute:02}:{second:02}")
}

/// Returns a bar of the part that is left. It is empty only if nothing is left.
pub fn draw_bar(left: Duration, whole: Duration) -> String {
    let full = (left.as_millis() * BAR_WIDTH as u128).div_ceil(whole.as_millis().max(1));
    let full = usize::try_from(full).unwrap_or(BAR_WIDTH).min(BAR_WIDTH);
    format!("{}{}", "#".repeat(full), "-".repeat(BAR_WIDTH - full))
}

/// Returns a line of bars, one per value, relative to the greatest one.
pub fn draw_sparkline(values: &[Option<u64>]) -> String {
    let greatest = values.iter().flatten().max().copied().unwrap_or_default();
    values
        .iter()
        .map(|value| {
            let Some(value) = value else { return ' ' };
            let level = (u128::from(*value) * (LEVELS.len() as u128 - 1)).div_ceil(u128::from(greatest.max(1)));
            LEVELS[usize::try_from(level).unwrap_or_default().min(LEVELS.len() - 1)]
        })
        .collect()
}

/// Returns the end of a text, which distinguishes the instances of an application, in at most this many characters.
pub fn end_of(text: &str, width: usize) -> String {
    let letters = text.chars().count();
    if letters <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().skip(letters - width.saturating_sub(1)).collect();
    format!("…{kept}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, expected) in [(0, "0"), (999, "999"), (1000, "1,000"), (-1_234_567, "-1,234,567"), (-1, "-1")] {
            assert_eq!(group_digits(number), expected);
        }
    }

    #[test]
    fn small_rates_have_a_decimal() {
        for (value, expected) in
            [(0.0, "0"), (-0.0, "0"), (0.25, "0.2"), (9.94, "9.9"), (9.96, "10"), (1200.4, "1,200")]
        {
            assert_eq!(format_rate(value), expected);
        }
    }

    #[test]
    fn a_bar_is_empty_only_at_the_end() {
        let of = |left| draw_bar(Duration::from_secs(left), Duration::from_secs(64));
        assert_eq!(
            [of(0), of(1), of(47), of(64), of(90)],
            ["--------", "#-------", "######--", "########", "########"]
        );
    }

    #[test]
    fn a_sparkline_is_relative_to_its_maximum() {
        assert_eq!(draw_sparkline(&[None, Some(0), Some(1), Some(50), Some(100)]), " ▁▂▅█");
        assert_eq!(draw_sparkline(&[Some(0), Some(0)]), "▁▁");
        assert_eq!(draw_sparkline(&[Some(u64::MAX)]), "█");
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(end_of("orders-7c9-x2", 20), "orders-7c9-x2");
        assert_eq!(end_of("orders-7c9-x2", 6), "…c9-x2");
    }
}
