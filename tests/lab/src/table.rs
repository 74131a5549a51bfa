//! Aligned tables in Markdown.

pub fn markdown(header: &[String], rows: &[Vec<String>]) -> String {
    let all = || std::iter::once(header).chain(rows.iter().map(Vec::as_slice));
    let width =
        |column: usize| all().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &[String]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!(" {cell:<width$} ") } else { format!(" {cell:>width$} ") }
        });
        format!("|{}|\n", cells.collect::<Vec<_>>().join("|"))
    };
    let rule = widths.iter().enumerate().map(|(column, width)| {
        let dashes = "-".repeat(width + 1);
        if column == 0 { format!("{dashes}-") } else { format!("{dashes}:") }
    });
    let rule = format!("|{}|\n", rule.collect::<Vec<_>>().join("|"));
    std::iter::once(line(header)).chain([rule]).chain(rows.iter().map(|row| line(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn columns_are_aligned_and_numbers_are_right_aligned() {
        let table = markdown(&cells(&["", "moves"]), &[cells(&["ours", "3"]), cells(&["größer", "1234567"])]);
        assert_eq!(
            table,
            "|        |   moves |\n\
             |--------|--------:|\n\
             | ours   |       3 |\n\
             | größer | 1234567 |\n"
        );
    }
}
