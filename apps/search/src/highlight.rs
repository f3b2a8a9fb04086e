//! The words of a query in a text.

use std::ops::Range;

/// The words of a query, without their case.
pub struct Words(Vec<String>);

impl Words {
    /// The words of `query`.
    pub fn new(query: &str) -> Self {
        let mut words: Vec<String> = words(query)
            .map(|word| query[word].to_lowercase())
            .collect();
        words.sort();
        words.dedup();
        Self(words)
    }

    /// The words of `text` that are words of the query, or begin with one of three letters or more.
    pub fn find(&self, text: &str) -> Vec<Range<usize>> {
        words(text)
            .filter(|word| self.rank(&text[word.clone()]).is_some())
            .collect()
    }

    /// The number of words of the query in `text`.
    pub fn count(&self, text: &str) -> usize {
        let mut found: Vec<usize> = words(text)
            .filter_map(|word| self.rank(&text[word]))
            .collect();
        found.sort_unstable();
        found.dedup();
        found.len()
    }

    /// The word of the query that `word` is, or begins with.
    fn rank(&self, word: &str) -> Option<usize> {
        let word = word.to_lowercase();
        let is = |known: &String| {
            *known == word || (known.chars().nth(2).is_some() && word.starts_with(known.as_str()))
        };
        self.0.iter().position(is)
    }
}

/// The places of letters and digits that belong together.
fn words(text: &str) -> impl Iterator<Item = Range<usize>> {
    let pieces = text.split(|c: char| !c.is_alphanumeric());
    let mut start = 0;
    pieces.filter_map(move |piece| {
        let word = start..start + piece.len();
        // The next one is behind the character that ends this one.
        let end = text[word.end..].chars().next();
        start = word.end + end.map_or(0, char::len_utf8);
        (!word.is_empty()).then_some(word)
    })
}

#[cfg(test)]
mod tests {
    use super::Words;

    fn found<'a>(query: &str, text: &'a str) -> Vec<&'a str> {
        let words = Words::new(query);
        words
            .find(text)
            .into_iter()
            .map(|word| &text[word])
            .collect()
    }

    #[test]
    fn words_are_found_in_any_case_and_script() {
        assert_eq!(
            found("Open file", "It OPENS a file, a File."),
            ["OPENS", "file", "File"]
        );
        assert_eq!(
            found("größe ΛΌΓΟΣ", "Die GRÖSSE, die Größe: λόγος"),
            ["Größe", "λόγος"]
        );
        assert_eq!(found("größe", "(größenordnung)"), ["größenordnung"]);
        assert_eq!(found("a is", "a car isn't ISO"), ["a"]);
        assert_eq!(found("…", "… nothing"), [""; 0]);
    }

    #[test]
    fn each_word_of_a_query_counts_once() {
        let words = Words::new("read the file");
        assert_eq!(words.count("the the the"), 1);
        assert_eq!(words.count("reading a FILE from the disk"), 3);
        assert_eq!(words.count(""), 0);
    }
}
