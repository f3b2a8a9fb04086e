//! Strings that end a text, at any position within tokens.

use std::sync::Arc;

/// The strings to search for, shared by the texts of a request.
pub struct StopStrings(Vec<StopString>);

struct StopString {
    bytes: Vec<u8>,
    /// The length, for each prefix, of its longest proper suffix that is also a prefix: the search
    /// continues there after a mismatch (Knuth, Morris, Pratt).
    borders: Vec<u16>,
}

impl StopStrings {
    /// The stop strings, which must be nonempty and at most 65,535 bytes long.
    pub fn new(strings: Vec<String>) -> Self {
        Self(strings.into_iter().map(StopString::new).collect())
    }

    pub fn bytes(&self) -> usize {
        let sizes = self.0.iter().map(|stop| stop.bytes.len());
        sizes.sum::<usize>() * (1 + size_of::<u16>())
    }
}

impl StopString {
    fn new(string: String) -> Self {
        let mut stop = Self { bytes: string.into_bytes(), borders: vec![0] };
        for end in 1..stop.bytes.len() {
            let border = stop.next(stop.borders[end - 1].into(), stop.bytes[end]);
            stop.borders.push(border as u16);
        }
        stop
    }

    /// The length of the longest prefix that a text ends with after another byte, where it ended
    /// with a prefix of `length` bytes before.
    fn next(&self, mut length: usize, byte: u8) -> usize {
        while length > 0 && self.bytes.get(length) != Some(&byte) {
            length = self.borders[length - 1].into();
        }
        length + usize::from(self.bytes.get(length) == Some(&byte))
    }
}

/// The search in a text. It holds text back while that can become a stop string.
pub struct Stops {
    strings: Arc<StopStrings>,
    /// The length, for each string, of the prefix that the text ends with.
    begun: Vec<usize>,
    held: String,
}

impl Stops {
    pub fn new(strings: Arc<StopStrings>) -> Self {
        Self { begun: vec![0; strings.0.len()], strings, held: String::new() }
    }

    /// Adds text; returns the certain text, and whether the text ends.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        let before = self.held.len();
        self.held.push_str(text);
        let mut end: Option<usize> = None;
        for (stop, begun) in self.strings.0.iter().zip(&mut self.begun) {
            for (index, byte) in text.bytes().enumerate() {
                *begun = stop.next(*begun, byte);
                if *begun == stop.bytes.len() {
                    let start = before + index + 1 - *begun;
                    end = Some(end.map_or(start, |end| end.min(start)));
                    break;
                }
            }
        }
        if let Some(end) = end {
            self.held.truncate(end);
            return (std::mem::take(&mut self.held), true);
        }
        let longest = self.begun.iter().max().copied().unwrap_or_default();
        let rest = self.held.split_off(self.held.len() - longest);
        (std::mem::replace(&mut self.held, rest), false)
    }

    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(strings: &[&str]) -> Stops {
        let strings = strings.iter().map(|&stop| stop.to_owned()).collect();
        Stops::new(Arc::new(StopStrings::new(strings)))
    }

    #[test]
    fn text_is_held_back_only_while_it_may_be_a_stop_string() {
        let mut search = stops(&["\n\n", "END", "ENé"]);
        let steps =
            [("a E", "a "), ("N", ""), ("C\n", "ENC"), ("b", "\nb"), ("EEN", "E"), ("EN", "EN")];
        for (text, certain) in steps {
            assert_eq!(search.push(text), (certain.to_owned(), false), "{text:?}");
        }
        assert!(search.holds());
        assert_eq!(search.push("é END"), (String::new(), true));
        assert_eq!(search.rest(), "");
        assert_eq!(stops(&["b", "ab"]).push("xab"), ("x".into(), true));
        assert_eq!(stops(&[]).push("abc"), ("abc".into(), false));
    }

    /// Texts of few letters repeat themselves, so a mismatch often leaves a prefix.
    #[test]
    fn finds_what_a_search_of_the_whole_text_finds() {
        let text_of = |number: usize, length: u32| -> String {
            let letter = |place| ['a', 'b', 'é'][number / 3_usize.pow(place) % 3];
            (0..length).map(letter).collect()
        };
        for random in (0..4000).map(|case| case * 7919) {
            let (text, strings) =
                (text_of(random, 9), [text_of(random / 7, 4), text_of(random / 11, 3)]);
            let mut search = stops(&strings.each_ref().map(String::as_str));
            let (mut read, mut found) = (String::new(), String::new());
            for letter in text.chars() {
                read.push(letter);
                let first = strings.iter().filter_map(|stop| read.find(stop)).min();
                let (certain, is_end) = search.push(letter.encode_utf8(&mut [0; 4]));
                found.push_str(&certain);
                let case = format!("{text} {strings:?}");
                assert_eq!(is_end, first.is_some(), "{case}");
                if is_end {
                    assert_eq!(found, text[..first.unwrap_or_default()], "{case}");
                    break;
                }
            }
        }
    }
}
