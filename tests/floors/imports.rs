//! The imports of a Rust source file: its `use` trees, and the paths in its code that begin with
//! `crate`, `self`, `super`, a module that the file declares, or a crate of candle's. Comments and
//! literals are skipped.

use std::sync::LazyLock;

use regex::Regex;

/// A path in absolute form: a module of the crate, `["crate", "nn", ..]`, or another crate.
pub type Path = Vec<String>;

/// Crates whose names are found in code as well as in `use` trees.
const WATCHED: [&str; 2] = ["candle_core", "candle_nn"];

/// The imports of the file of the module `module`, whose submodules are `children`.
pub fn imports(source: &str, module: &[&str], children: &[&str]) -> Vec<Path> {
    let mut parser = Parser { tokens: &tokens(source), at: 0 };
    let mut found = Vec::new();
    // The open inline modules, each with the brace depth around it.
    let (mut depth, mut inline) = (0, Vec::<(String, i32)>::new());
    while let Some(token) = parser.peek(0) {
        let children = if inline.is_empty() { children } else { &[] };
        let within = |path: Path| {
            let enclosing = module.iter().map(ToString::to_string);
            let enclosing: Path =
                enclosing.chain(inline.iter().map(|(name, _)| name.clone())).collect();
            // In the code that a macro writes, a path may begin with a variable.
            (!path.is_empty()).then(|| resolve(path, &enclosing, children))
        };
        match token {
            "use" if parser.peek(1) != Some("<") => {
                parser.at += 1;
                let mut paths = Vec::new();
                parser.tree(&Vec::new(), &mut paths);
                found.extend(paths.into_iter().filter_map(within));
                continue;
            }
            "mod" if parser.peek(2) == Some("{") => {
                inline.push((parser.peek(1).unwrap_or_default().to_owned(), depth));
            }
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inline.retain(|(_, brace)| *brace < depth);
            }
            _ if parser.begins_a_path(children) => {
                found.extend(within(parser.path()));
                continue;
            }
            _ => {}
        }
        parser.at += 1;
    }
    found
}

/// A path as the compiler resolves it in the module `module`.
fn resolve(path: Path, module: &[String], children: &[&str]) -> Path {
    let mut absolute = vec!["crate".to_owned()];
    let mut rest = &path[..];
    match path[0].as_str() {
        "crate" => rest = &path[1..],
        "self" | "super" => absolute.extend_from_slice(module),
        first if children.contains(&first) => absolute.extend_from_slice(module),
        _ => return path,
    }
    while let Some(first @ ("self" | "super")) = rest.first().map(String::as_str) {
        if first == "super" {
            absolute.pop();
        }
        rest = &rest[1..];
    }
    absolute.extend_from_slice(rest);
    absolute
}

struct Parser<'a> {
    tokens: &'a [&'a str],
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self, ahead: usize) -> Option<&'a str> {
        self.tokens.get(self.at + ahead).copied()
    }

    fn before(&self, back: usize) -> Option<&'a str> {
        self.tokens.get(self.at.checked_sub(back)?).copied()
    }

    /// Whether a watched path begins here, which is not part of a visibility, `pub(in crate::x)`.
    fn begins_a_path(&self, children: &[&str]) -> bool {
        let first = self.peek(0).unwrap_or_default();
        let mut known = ["crate", "self", "super"].iter().chain(&WATCHED).chain(children);
        known.any(|known| *known == first)
            && self.peek(1) == Some("::")
            && self.before(1) != Some("::")
            && (self.before(1), self.before(2)) != (Some("in"), Some("("))
    }

    fn path(&mut self) -> Path {
        let mut path = Vec::new();
        while let Some(name) = self.peek(0).filter(|token| is_name(token)) {
            path.push(name.to_owned());
            self.at += 1;
            if self.peek(0) != Some("::") {
                break;
            }
            self.at += 1;
        }
        path
    }

    /// A `use` tree after `prefix`: `a::b`, `a::{b, c as d}`, `a::*`.
    fn tree(&mut self, prefix: &Path, found: &mut Vec<Path>) {
        if self.peek(0) == Some("::") {
            self.at += 1;
        }
        let path = [prefix.clone(), self.path()].concat();
        match self.peek(0) {
            Some("{") => {
                self.at += 1;
                while self.peek(0).is_some_and(|token| token != "}") {
                    self.tree(&path, found);
                    if self.peek(0) == Some(",") {
                        self.at += 1;
                    }
                }
                self.at += 1;
                return;
            }
            Some("*") => self.at += 1,
            Some("as") => self.at += 2,
            _ => {}
        }
        found.push(path);
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::` and single characters; of literals and comments nothing.
fn tokens(source: &str) -> Vec<&str> {
    static TOKEN: LazyLock<Regex> = LazyLock::new(|| {
        let comment = r"//[^\n]*|/\*(?s:.*?)\*/";
        let raw = r##"[bc]?r"[^"]*"|[bc]?r#"(?s:.*?)"#"##;
        // A lifetime has no closing quote.
        let literal = r#"[bc]?"(?:\\(?s:.)|[^"\\])*"|b?'(?:\\.[^'\n]*|[^'\\\n])'"#;
        let pattern = format!(r"{comment}|{raw}|{literal}|(\w+|::|\S)");
        Regex::new(&pattern).expect("a pattern")
    });
    let tokens = TOKEN.captures_iter(source).filter_map(|found| found.get(1));
    tokens.map(|token| token.as_str()).collect()
}
