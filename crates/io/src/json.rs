//! JSON as Python's `json` module and the editors of Windows write it.

/// The three words that Python writes and JSON lacks, with strings of the same length.
const WORDS: [(&[u8], &[u8]); 3] =
    [(b"NaN", br#""N""#), (b"Infinity", br#""Infini""#), (b"-Infinity", br#""-Infini""#)];

const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Removes a leading byte order mark, and replaces `NaN`, `Infinity` and `-Infinity` by strings, so
/// that a strict parser accepts the text.
///
/// Everything else stays in place: a parser's line and column also hold in `json`. Reading such a
/// value as a number is an error; a value that nobody reads does no harm.
///
/// ```
/// let json = r#"{"sizes": [1, Infinity], "name": "NaN"}"#;
/// let strict = br#"{"sizes": [1, "Infini"], "name": "NaN"}"#;
/// assert_eq!(candle_dynquant_io::json::strict(json.into()), strict);
/// ```
#[must_use]
pub fn strict(mut json: Vec<u8>) -> Vec<u8> {
    if json.starts_with(BYTE_ORDER_MARK) {
        json[..BYTE_ORDER_MARK.len()].fill(b' ');
    }
    let mut at = 0;
    while at < json.len() {
        match json[at] {
            b'"' => at = end_of_string(&json, at),
            b'N' | b'I' | b'-' => {
                let word = WORDS.iter().find(|(word, _)| json[at..].starts_with(word));
                let length = word.map_or(1, |(word, string)| {
                    json[at..at + word.len()].copy_from_slice(string);
                    word.len()
                });
                at += length;
            }
            _ => at += 1,
        }
    }
    json
}

/// The end of the string that begins at `start`.
fn end_of_string(json: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < json.len() {
        match json[at] {
            b'"' => return at + 1,
            // An escaped byte never ends the string.
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_are_no_json_become_strings_of_their_length() {
        let cases = [
            ("", ""),
            ("NaN", r#""N""#),
            ("[NaN,-Infinity,Infinity]", r#"["N","-Infini","Infini"]"#),
            ("\u{feff}{\"a\": -1}", "   {\"a\": -1}"),
            // A byte order mark elsewhere is a character.
            ("{\"\u{feff}\": NaN}", "{\"\u{feff}\": \"N\"}"),
            // The words are text within strings, whatever the strings end with.
            (r#"["NaN", "\"NaN", "\\", NaN]"#, r#"["NaN", "\"NaN", "\\", "N"]"#),
            (r#"["é", NaN, "Infinity"#, r#"["é", "N", "Infinity"#),
            (r#"["\"#, r#"["\"#),
            ("[-1, Na, Infinit", "[-1, Na, Infinit"),
        ];
        for (json, expected) in cases {
            let strict = strict(json.into());
            assert_eq!(String::from_utf8_lossy(&strict), expected, "{json}");
            assert_eq!(strict.len(), json.len());
        }
    }
}
