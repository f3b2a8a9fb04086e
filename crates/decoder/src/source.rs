//! The source of a chat template, changed where minijinja computes otherwise than Jinja.

/// The function that makes a tuple, for which minijinja's syntax takes a list.
pub const TUPLE: &str = "__tuple";
/// The function that refuses a divisor by which minijinja may round otherwise.
pub const DIVISOR: &str = "__divisor";

/// The text of a template, and the strings in its code.
#[derive(Default)]
pub struct Source {
    pub text: String,
    pub literals: Vec<String>,
}

impl Source {
    pub fn read(source: &str) -> Self {
        let (mut read, mut rest) = (Self::default(), source);
        while let Some(at) = ["{{", "{%", "{#"].iter().filter_map(|tag| rest.find(tag)).min() {
            let is_code = !rest[at..].starts_with("{#");
            let end = rest[at..].find("#}").map_or(rest.len(), |end| at + end);
            let (text, behind) = rest.split_at(if is_code { at + 2 } else { end });
            read.text += text;
            rest = if is_code { read.code(behind) } else { behind };
        }
        read.text += rest;
        read
    }

    /// Reads code up to the end of its tag; returns what follows.
    fn code<'a>(&mut self, mut rest: &'a str) -> &'a str {
        const OPERATORS: [&str; 8] = ["in", "not", "and", "or", "is", "if", "elif", "else"];
        let is_word = |c: char| c.is_alphanumeric() || c == '_';
        // Where each open bracket is, and whether it may be of a tuple and has a comma.
        let (mut open, mut begins) = (Vec::new(), true);
        while let Some(c) = rest.chars().next() {
            if open.is_empty() && (rest.starts_with("}}") || rest.starts_with("%}")) {
                break;
            }
            let mut length = c.len_utf8();
            if let '\'' | '"' = c {
                length = string(rest, c);
                let text = rest[1..length].trim_end_matches(c);
                self.literals.push(text.replace("\\n", "\n"));
            } else if is_word(c) {
                length = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
            } else if "([{".contains(c) {
                let is_empty = rest[1..].trim_start().starts_with(')');
                open.push((self.text.len(), c == '(' && begins, is_empty));
            } else if let (',', Some(bracket)) = (c, open.last_mut()) {
                bracket.2 = true;
            } else if let (')' | ']' | '}', Some((at, true, true))) =
                (c, open.pop_if(|_| ")]}".contains(c)))
            {
                self.text.insert_str(at, TUPLE);
            }
            let (token, behind) = rest.split_at(length);
            (rest, self.text) = (behind, std::mem::take(&mut self.text) + token);
            if !token.trim().is_empty() {
                let is_value = token.ends_with(|c| is_word(c) || "\"')]}".contains(c));
                begins = !is_value || OPERATORS.contains(&token);
            }
            if token == "%" || token == "/" && self.text.ends_with("//") {
                let divisor = rest.trim_start().split(|c| !is_word(c) && c != '.').next();
                if !divisor.is_some_and(|divisor| divisor.parse::<u32>().is_ok_and(|d| d > 0)) {
                    self.text += &format!(" {DIVISOR}() * ");
                }
            }
        }
        rest
    }
}

/// The length of the string at the beginning of a text.
fn string(text: &str, quote: char) -> usize {
    let mut is_escaped = true;
    let end = text.char_indices().find(|(_, c)| {
        let is_end = !is_escaped && *c == quote;
        is_escaped = !is_escaped && *c == '\\';
        is_end
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}
