//! Strings that end a text, wherever tokens cut them.

/// Holds text back for as long as it can become a stop string.
pub struct Stops {
    strings: Vec<String>,
    held: String,
}

impl Stops {
    /// None of the strings is empty.
    pub fn new(strings: Vec<String>) -> Self {
        let held = String::new();
        Self { strings, held }
    }

    /// Adds text; returns what is certain now, and whether it ends there.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        let first = self.strings.iter().filter_map(|stop| self.held.find(stop));
        if let Some(end) = first.min() {
            self.held.truncate(end);
            return (std::mem::take(&mut self.held), true);
        }
        let rest = self.held.split_off(self.certain());
        (std::mem::replace(&mut self.held, rest), false)
    }

    /// Whether text is held back.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// The text that was held back, when no more follows.
    pub fn rest(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The bytes before the first place at which a stop string may have begun.
    fn certain(&self) -> usize {
        let begins = |(place, _): &(usize, char)| {
            let rest = &self.held[*place..];
            self.strings.iter().any(|stop| stop.starts_with(rest))
        };
        let first = self.held.char_indices().find(begins);
        first.map_or(self.held.len(), |(place, _)| place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_held_back_only_while_it_may_be_a_stop_string() {
        let mut stops = Stops::new(vec!["\n\n".into(), "END".into(), "ENé".into()]);
        let steps = [
            ("a E", "a "),
            ("N", ""),
            ("C\n", "ENC"),
            ("b", "\nb"),
            ("EEN", "E"),
            ("EN", "EN"),
        ];
        for (text, certain) in steps {
            assert_eq!(stops.push(text), (certain.to_owned(), false), "{text:?}");
        }
        assert!(stops.holds());
        assert_eq!(stops.push("é END"), (String::new(), true));
        assert_eq!(stops.rest(), "");
        assert_eq!(
            Stops::new(vec!["b".into(), "ab".into()]).push("xab"),
            ("x".into(), true)
        );
        let mut none = Stops::new(Vec::new());
        assert_eq!(none.push("abc"), ("abc".into(), false));
    }
}
