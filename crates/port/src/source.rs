//! A text, its syntax tree, and the mapping between them.

use std::any::Any;
use std::ops::Range;

use proc_macro2::{Delimiter, Spacing, Span, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Expr, ExprMethodCall, Token};

/// The reason why a file cannot be ported.
#[derive(Debug)]
pub struct Fault {
    pub line: usize,
    pub message: String,
}

impl Fault {
    /// A fault of a file as a whole.
    pub fn whole(message: String) -> Self {
        Self { line: 1, message }
    }
}

/// A token or a node of a syntax tree.
pub trait Extent: Spanned + Any {}

impl<T: Spanned + Any> Extent for T {}

/// A text and the starts of its lines.
pub struct Source<'t> {
    pub text: &'t str,
    /// The bytes before the first of the syntax tree: a byte order mark and a `#!` line.
    prefix: usize,
    lines: Vec<usize>,
    /// The line ending.
    pub newline: &'static str,
}

/// The most tokens on the way down to any token, which bounds the recursion over a syntax tree.
const MAX_DEPTH: usize = 20_000;
const MAX_DELIMITERS: usize = 200;
const MAX_BYTES: usize = 16 << 20;

impl<'t> Source<'t> {
    /// Parses the text.
    pub fn parse(text: &'t str) -> Result<(Self, syn::File), Fault> {
        let lines = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1));
        let mut source = Self {
            text,
            prefix: prefix(text),
            lines: lines.collect(),
            newline: if text.contains("\r\n") { "\r\n" } else { "\n" },
        };
        if text.len() > MAX_BYTES {
            return Err(Fault::whole(format!("larger than {} MiB", MAX_BYTES >> 20)));
        }
        let tokens = text[source.prefix..].parse();
        let tokens: TokenStream = tokens.map_err(|error: proc_macro2::LexError| {
            source.at_span(error.span(), "no Rust token")
        })?;
        source.check_depth(&tokens, 0, 0)?;
        let file = syn::parse2(tokens)
            .map_err(|error: syn::Error| source.at_span(error.span(), &error.to_string()))?;
        source.lines.shrink_to_fit();
        Ok((source, file))
    }

    /// Checks the depth of the recursion in visitors of the tree, which must not overflow the
    /// stack.
    fn check_depth(&self, tokens: &TokenStream, above: usize, groups: usize) -> Result<(), Fault> {
        let mut runs = TokenRuns::default();
        let mut tokens = tokens.clone().into_iter().peekable();
        while let Some(token) = tokens.next() {
            runs.token(&token);
            if let TokenTree::Group(group) = &token {
                if groups == MAX_DELIMITERS {
                    return Err(self.at_span(group.span_open(), "too many nested delimiters"));
                }
                self.check_depth(&group.stream(), above + runs.depth(), groups + 1)?;
                if group.delimiter() == Delimiter::Brace && begins(tokens.peek()) {
                    runs = TokenRuns::default();
                }
            }
            if above + runs.depth() > MAX_DEPTH {
                return Err(self.at_span(token.span(), "an expression of too many tokens"));
            }
        }
        Ok(())
    }

    fn at_span(&self, span: Span, message: &str) -> Fault {
        let before = self.text[..self.prefix].matches('\n').count();
        Fault { line: span.start().line.max(1) + before, message: message.to_owned() }
    }

    /// The byte range of a token or a node.
    pub fn range(&self, node: &impl Extent) -> Range<usize> {
        let range = range(node);
        range.start + self.prefix..range.end + self.prefix
    }

    /// The first byte of a token or a node.
    pub fn start(&self, node: &impl Extent) -> usize {
        self.range(node).start
    }

    pub fn slice(&self, node: &impl Extent) -> &'t str {
        &self.text[self.range(node)]
    }

    /// The line of a byte, from 1.
    pub fn line(&self, at: usize) -> usize {
        self.lines.partition_point(|start| *start <= at)
    }

    /// The start of the line of a byte.
    pub fn line_start(&self, at: usize) -> usize {
        self.lines[self.line(at) - 1]
    }

    /// The start of the next line.
    pub fn line_end(&self, at: usize) -> usize {
        self.lines.get(self.line(at)).copied().unwrap_or(self.text.len())
    }

    /// The white space at the start of a byte's line.
    pub fn indent(&self, at: usize) -> &'t str {
        let line = &self.text[self.line_start(at)..];
        &line[..line.len() - line.trim_start_matches([' ', '\t']).len()]
    }

    /// A line's end, and the white space that a byte's line begins with.
    pub fn next_line(&self, at: usize) -> String {
        format!("{}{}", self.newline, self.indent(at))
    }

    /// The text between an insertion and a byte: a line's end where its line begins, else a space.
    pub fn gap(&self, at: usize) -> String {
        let is_first = self.text[self.line_start(at)..at].trim().is_empty();
        if is_first { self.next_line(at) } else { " ".to_owned() }
    }

    /// The whole lines of a range, if nothing else stands on them; else the range.
    pub fn whole_lines(&self, range: Range<usize>) -> Range<usize> {
        let start = self.line_start(range.start);
        let end = self.line_end(range.end.max(1) - 1);
        let blank = |text: &str| text.trim().is_empty();
        if blank(&self.text[start..range.start]) && blank(&self.text[range.end..end]) {
            start..end
        } else {
            range
        }
    }

    /// The lines of a removed range, with the comments above and behind it.
    pub fn with_comments(&self, range: Range<usize>) -> Range<usize> {
        let end = self.line_end(range.end.max(1) - 1);
        let rest = &self.text[range.end..end];
        let behind = if is_comment(rest) { rest.trim_end().len() } else { 0 };
        let end = range.end + behind;
        let whole = self.whole_lines(range.start..end);
        let mut start = whole.start;
        while start > 0 && self.line_start(start) == start {
            let above = self.line_start(start - 1);
            if !self.is_comment(above) {
                break;
            }
            start = above;
        }
        start..whole.end
    }

    /// An element of a list with its comma and the comments above it.
    pub fn item_of_list<T: Extent>(
        &self,
        list: &Punctuated<T, Token![,]>,
        item: &T,
    ) -> Range<usize> {
        let range = self.range(item);
        let before = list.iter().filter(|one| self.start(*one) < range.start);
        let index = before.count();
        let next = list.get(index + 1).map(|next| self.start(next));
        let pair = list.pairs().nth(index);
        let comma = pair.and_then(|pair| pair.punct().map(|comma| self.range(*comma).end));
        let Some(comma) = comma else {
            // The last element takes the comma before it along.
            let before = index.checked_sub(1).map(|at| self.range(&list[at]).end);
            return before.unwrap_or(range.start)..range.end;
        };
        match next {
            Some(next) if self.line(next) == self.line(comma) => range.start..next,
            _ => self.with_comments(range.start..comma),
        }
    }

    /// The range without its leading comments.
    pub fn without_comments(&self, mut range: Range<usize>) -> Range<usize> {
        while range.start < range.end && self.is_comment(range.start) {
            range.start = self.line_end(range.start);
        }
        range
    }

    /// Whether the line from a byte on is a comment.
    pub fn is_comment(&self, at: usize) -> bool {
        is_comment(&self.text[at..self.line_end(at)])
    }

    /// The lines of a removed range, with an empty line that would otherwise be left twice.
    pub fn lines_of(&self, range: Range<usize>) -> Range<usize> {
        let lines = self.whole_lines(range);
        let above = || self.line_start(lines.start - 1)..lines.start;
        if lines.start == 0 || self.text[above()].trim().is_empty() {
            self.item_lines(lines)
        } else {
            lines
        }
    }

    /// The lines of a removed declaration, with the empty line after it.
    pub fn item_lines(&self, range: Range<usize>) -> Range<usize> {
        let mut range = self.whole_lines(range);
        let end = self.line_end(range.end);
        if self.text[range.end..end].trim().is_empty() {
            range.end = end;
        }
        range
    }

    /// Whether the author wants the line unchanged: `// dynquant: keep` on it or above it.
    pub fn is_kept(&self, at: usize) -> bool {
        let start = self.line_start(at);
        let above = self.line_start(start.saturating_sub(1));
        self.text[above..self.line_end(at)].contains("dynquant: keep")
    }
}

/// The byte range of a node. `span` would read all tokens of the node: for each link of a chain,
/// the tokens of all links before it.
fn range<T: Extent>(node: &T) -> Range<usize> {
    let any: &dyn Any = node;
    let ends = if let Some(expr) = any.downcast_ref() {
        link(expr)
    } else if let Some(call) = any.downcast_ref() {
        method_call(call)
    } else {
        None
    };
    let Some((mut first, last)) = ends else { return node.span().byte_range() };
    while let Some((before, _)) = link(first) {
        first = before;
    }
    first.span().byte_range().start..last.byte_range().end
}

/// The first operand and the last token of an expression that continues another.
fn link(expr: &Expr) -> Option<(&Expr, Span)> {
    match expr {
        Expr::MethodCall(call) => method_call(call),
        Expr::Try(tried) if tried.attrs.is_empty() => {
            Some((&tried.expr, tried.question_token.span))
        }
        Expr::Field(field) if field.attrs.is_empty() => Some((&field.base, field.member.span())),
        Expr::Binary(binary) if binary.attrs.is_empty() => {
            Some((&binary.left, last(&binary.right)))
        }
        _ => None,
    }
}

fn method_call(call: &ExprMethodCall) -> Option<(&Expr, Span)> {
    let last = call.paren_token.span.close();
    call.attrs.is_empty().then_some((&call.receiver, last))
}

/// The last token of an expression, or its span.
fn last(expr: &Expr) -> Span {
    link(expr).map_or_else(|| expr.span(), |(_, last)| last)
}

/// The number of tokens in a group since something ended, by which the depth is bounded.
#[derive(Default)]
struct TokenRuns {
    /// The tokens since a statement, an item or an element.
    tokens: usize,
    /// The `|` and `<` since then: commas in the parameters of closures and in angle brackets end
    /// nothing outside.
    pipes: usize,
    angles: usize,
    /// The character before, if the next character continues it.
    joined: Option<char>,
}

impl TokenRuns {
    fn depth(&self) -> usize {
        self.tokens + self.pipes + self.angles
    }

    fn token(&mut self, token: &TokenTree) {
        self.tokens += 1;
        let TokenTree::Punct(punct) = token else {
            self.joined = None;
            return;
        };
        let joined = (punct.spacing() == Spacing::Joint).then_some(punct.as_char());
        match (std::mem::replace(&mut self.joined, joined), punct.as_char()) {
            (_, ';') => *self = Self::default(),
            (_, ',') => self.tokens = 0,
            (_, '|') => self.pipes += 1,
            (_, '<') => self.angles += 1,
            // The arms before it have ended.
            (Some('='), '>') => (self.pipes, self.angles) = (0, 0),
            (Some('-'), '>') => {}
            (_, '>') => self.angles = self.angles.saturating_sub(1),
            _ => {}
        }
    }
}

/// Whether the token after braces begins something new.
fn begins(next: Option<&TokenTree>) -> bool {
    match next {
        None => true,
        Some(TokenTree::Ident(word)) => {
            let goes_on = ["as", "else", "if", "in", "where"];
            !goes_on.iter().any(|known| word == known)
        }
        Some(TokenTree::Punct(punct)) => punct.as_char() == '#',
        Some(_) => false,
    }
}

/// Whether a range is inside another range.
pub fn is_inside(range: &Range<usize>, outer: &Range<usize>) -> bool {
    outer.start <= range.start && range.end <= outer.end
}

/// Whether the rest of a line is only a comment.
fn is_comment(line: &str) -> bool {
    let line = line.trim();
    line.starts_with("//") || line.starts_with("/*") && line.find("*/") == Some(line.len() - 2)
}

fn prefix(text: &str) -> usize {
    let mark = if text.starts_with('\u{feff}') { 3 } else { 0 };
    let rest = &text[mark..];
    let shebang = rest.starts_with("#!") && !rest[2..].trim_start().starts_with('[');
    if shebang { mark + rest.find('\n').unwrap_or(rest.len()) } else { mark }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_text() {
        for text in [
            "// ü\r\nstruct A;\r\nstruct B;\r\n",
            "\u{feff}// ü\nstruct A;\nstruct B;",
            "#!/usr/bin/env x\nstruct A;\nstruct B;",
        ] {
            let (source, file) = Source::parse(text).unwrap();
            assert_eq!(source.slice(&file.items[1]), "struct B;");
            assert_eq!(source.line(source.range(&file.items[1]).start), 3);
        }
    }

    #[test]
    fn faults_have_lines() {
        for (text, line) in [("fn f() {\n  let = 3;\n}", 2), ("#!/x\nfn f(\n", 2), ("\n'", 2)] {
            let fault = Source::parse(text).err().unwrap();
            assert_eq!(fault.line, line, "{text:?}: {}", fault.message);
        }
    }

    #[test]
    fn deep_input_is_refused() {
        let deep = [
            "(",
            "[",
            "{",
            "!",
            "&",
            "a+",
            "a=",
            "a.b().",
            "if a {} else ",
            "S{}+",
            "S{} as u8 + ",
            "|a,b|",
            "|a,b| x >> ",
            "a | |b,c| ",
            "for S{} in ",
            "A::<b, {1}, A<c, ",
        ];
        for piece in deep {
            let long = piece.repeat(25_000);
            for text in [format!("fn f() {{ {long} }}"), format!("const A: B = {long};")] {
                let fault = Source::parse(&text).err().unwrap();
                let is_open = ["(", "[", "{"].contains(&piece);
                let limit = fault.message.contains("too many");
                assert!(limit || is_open, "{piece}: {}", fault.message);
                assert_eq!(fault.line, 1, "{piece}");
            }
        }
    }

    #[test]
    fn long_files_of_small_parts_are_none_that_are_deep() {
        let parts = [
            ("mod m { ", "fn f(a: Vec<u8>) -> u8 { a | b } ", "}"),
            ("fn f() { match a { ", "A | B => x < 1, C => {} ", "} }"),
            ("fn f() { g(", "|a| a, V::<u8>::new(), ", ") }"),
            ("", "impl A<u8> { fn f() {} } ", ""),
        ];
        for (start, part, end) in parts {
            let text = format!("{start}{}{end}", part.repeat(9_000));
            let fault = Source::parse(&text).err().map(|fault| fault.message);
            assert_eq!(fault, None, "{part}");
        }
    }
}
