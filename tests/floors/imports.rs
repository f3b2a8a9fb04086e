//! The imports of a Rust source file: its `use` trees, and the paths in its code that begin with
//! `crate`, `self`, `super`, a module that the file declares, or a crate of candle's. Comments and
//! literals are skipped.

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
        let within = |paths: Vec<Path>| {
            let enclosing = module.iter().map(ToString::to_string);
            let enclosing: Path =
                enclosing.chain(inline.iter().map(|(name, _)| name.clone())).collect();
            let absolute = move |path| resolve(path, &enclosing, children);
            // In the code that a macro writes, a path may begin with a variable.
            let paths = paths.into_iter().filter(|path| !path.is_empty());
            paths.map(absolute).collect::<Vec<_>>()
        };
        match token {
            "use" if parser.peek(1) != Some("<") => {
                parser.at += 1;
                let mut paths = Vec::new();
                parser.tree(&Vec::new(), &mut paths);
                found.extend(within(paths));
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
                let path = parser.path();
                found.extend(within(vec![path]));
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
    tokens: &'a [String],
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self, ahead: usize) -> Option<&'a str> {
        self.tokens.get(self.at + ahead).map(String::as_str)
    }

    fn before(&self, back: usize) -> Option<&'a str> {
        let at = self.at.checked_sub(back)?;
        self.tokens.get(at).map(String::as_str)
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
fn tokens(source: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let name = |c: char| c.is_alphanumeric() || c == '_';
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = literal(rest) {
            length
        } else if name(first) {
            let length = rest.find(|c| !name(c)).unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// The length of the string or character literal at the start of the source, if there is one.
fn literal(source: &str) -> Option<usize> {
    let marked = source.trim_start_matches(['b', 'c']);
    let prefix = source.len() - marked.len();
    if prefix > 1 {
        return None;
    }
    if let Some(raw) = marked.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let body = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = body.find(&end)? + end.len();
        return Some(prefix + 1 + hashes + 1 + length);
    }
    let quote = marked.chars().next().filter(|c| ['"', '\''].contains(c))?;
    let mut chars = marked.char_indices().skip(1);
    let (_, first) = chars.next()?;
    if quote == '\'' && first != '\\' {
        // A lifetime has no closing quote.
        let (at, end) = chars.next()?;
        return (end == quote).then_some(prefix + at + 1);
    }
    let mut escaped = false;
    for (at, c) in marked.char_indices().skip(1) {
        match c {
            '\\' if !escaped => escaped = true,
            c if c == quote && !escaped => return Some(prefix + at + 1),
            _ => escaped = false,
        }
    }
    None
}
