//! A terminal's screen as a person sees it: the rows that remain of all that was written. Knows as much of
//! ECMA-48 as shells and meshlock write; rows have no end, so that a line that is too long is seen to be.

/// The rows, without blanks at their ends.
pub(crate) fn rows(written: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(written);
    let mut rows: Vec<Vec<char>> = vec![Vec::new()];
    let mut column: usize = 0;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        let row = rows.last_mut().expect("a row");
        match char {
            '\r' => column = 0,
            '\n' => rows.push(Vec::new()),
            '\u{8}' => column = column.saturating_sub(1),
            '\u{7}' => {}
            '\u{1b}' => {
                let mut sequence = String::new();
                for part in chars.by_ref() {
                    sequence.push(part);
                    if part.is_alphabetic() {
                        break;
                    }
                }
                // There is never anything below.
                if ["[K", "[J"].contains(&sequence.as_str()) {
                    row.truncate(column);
                }
            }
            char => {
                if row.len() <= column {
                    row.resize(column + 1, ' ');
                }
                row[column] = char;
                column += 1;
            }
        }
    }
    let row = |row: Vec<char>| row.into_iter().collect::<String>().trim_end().to_owned();
    rows.into_iter().map(row).collect()
}
