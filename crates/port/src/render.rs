//! `use` declarations in rustfmt's format.

use super::scopes::Leaf;

const WIDTH: usize = 100;

/// A segment of a path and the segments that follow it.
struct UseNode {
    name: String,
    alias: Option<String>,
    /// Whether the path itself is imported, beside its children.
    is_leaf: bool,
    children: Vec<UseNode>,
}

impl UseNode {
    fn new(name: &str) -> Self {
        Self { name: name.to_owned(), alias: None, is_leaf: false, children: Vec::new() }
    }

    fn add(&mut self, path: &[String], leaf: &Leaf) {
        let Some((first, rest)) = path.split_first() else {
            let alias = leaf.alias().map(str::to_owned);
            let has_own = self.is_leaf || alias.is_some() && !self.children.is_empty();
            if leaf.name == "*" || has_own {
                let mut node = UseNode::new(if leaf.name == "*" { "*" } else { "self" });
                (node.is_leaf, node.alias) = (true, alias);
                self.children.push(node);
            } else {
                (self.is_leaf, self.alias) = (true, alias);
            }
            return;
        };
        let last = rest.is_empty() && leaf.name != "*";
        let same = |node: &&mut UseNode| {
            node.name == *first && node.alias.is_none() && !(last && node.is_leaf)
        };
        match self.children.iter_mut().find(same) {
            Some(node) => node.add(rest, leaf),
            None => {
                let mut node = UseNode::new(first);
                node.add(rest, leaf);
                self.children.push(node);
            }
        }
    }

    /// The name with its alias, if it has one.
    fn named(&self, name: &str) -> String {
        let alias = self.alias.iter().map(|alias| format!(" as {alias}"));
        name.to_owned() + &alias.collect::<String>()
    }

    fn items(&self) -> Vec<String> {
        let itself = (self.is_leaf && !self.children.is_empty()).then(|| self.named("self"));
        let children = self.children.iter().map(Self::render);
        itself.into_iter().chain(children).collect()
    }

    fn render(&self) -> String {
        let name = &self.name;
        match self.items().as_slice() {
            [] => self.named(name),
            [item] => format!("{name}::{item}"),
            items => format!("{name}::{{{}}}", items.join(", ")),
        }
    }

    /// The path down to the first group, and the group's items.
    fn split(&self) -> (String, Vec<String>) {
        match self.children.as_slice() {
            [child] if !self.is_leaf && !child.children.is_empty() => {
                let (path, items) = child.split();
                (format!("{}::{path}", self.name), items)
            }
            _ => (self.name.clone(), self.items()),
        }
    }
}

/// Declarations that import the leaves, one per first segment, without a final newline.
///
/// `head` is the text before `use`: attributes and visibility.
pub fn uses(leaves: &[Leaf], head: &str, indent: &str, newline: &str) -> String {
    let mut root = UseNode::new("");
    for leaf in leaves {
        root.add(&leaf.path, leaf);
    }
    let nodes = root.children.iter();
    let lines: Vec<_> = nodes.map(|node| declaration(node, head, indent, newline)).collect();
    lines.join(&format!("{newline}{indent}"))
}

fn declaration(node: &UseNode, head: &str, indent: &str, newline: &str) -> String {
    let line = format!("{head}use {};", node.render());
    let (path, items) = node.split();
    if indent.len() + line.len() <= WIDTH - 2 || items.len() < 2 {
        return line;
    }
    let mut text = format!("{head}use {path}::{{{newline}");
    let inner = format!("{indent}    ");
    let nested = items.iter().any(|item| item.contains('{'));
    let mut row = inner.clone();
    for (index, item) in items.iter().enumerate() {
        let full = row.len() + 1 + item.len() + 1 > WIDTH;
        if index > 0 && (nested || full) {
            text += &row;
            text += newline;
            row.clone_from(&inner);
        }
        if row.len() > inner.len() {
            row.push(' ');
        }
        row += item;
        row.push(',');
    }
    format!("{text}{row}{newline}{indent}}};")
}

/// The order of names in a group: functions and modules, types, constants.
pub fn sort_key(leaf: &Leaf) -> (u8, String) {
    let name = leaf.path.last().cloned().unwrap_or_default();
    let class = match name.chars().next() {
        Some(first) if !first.is_uppercase() => 0,
        _ if name.chars().any(char::is_lowercase) => 1,
        _ => 2,
    };
    (class, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(paths: &[&str]) -> Vec<Leaf> {
        let leaf = |path: &&str| {
            let (path, alias) = match path.split_once(" as ") {
                Some((path, alias)) => (path, Some(alias)),
                None => (*path, None),
            };
            let mut path: Vec<_> = path.split("::").map(str::to_owned).collect();
            let mut name = alias.map_or_else(|| path[path.len() - 1].clone(), str::to_owned);
            if path.last().is_some_and(|last| last == "*") {
                name = path.pop().unwrap();
            }
            Leaf { path, name }
        };
        paths.iter().map(leaf).collect()
    }

    #[test]
    fn trees_are_written_as_rustfmt_does() {
        let cases: [(&[&str], &str); 6] = [
            (&["a::B"], "use a::B;"),
            (&["a::b::C", "a::b::D"], "use a::b::{C, D};"),
            (&["a as b"], "use a as b;"),
            (&["a", "a::B"], "use a::{self, B};"),
            (&["a::B as C", "a::d::*"], "use a::{B as C, d::*};"),
            (&["a::B", "c::D"], "use a::B;\nuse c::D;"),
        ];
        for (paths, text) in cases {
            assert_eq!(uses(&leaves(paths), "", "", "\n"), text);
        }
    }

    #[test]
    fn long_lists_are_wrapped() {
        let names: Vec<_> = (0..20).map(|i| format!("some_crate::module::Name{i}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let text = uses(&leaves(&names), "", "", "\n");
        assert!(text.starts_with("use some_crate::module::{\n    Name0, Name1,"), "{text}");
        assert!(text.ends_with("Name19,\n};"), "{text}");
        assert!(text.lines().all(|line| line.len() <= WIDTH));
    }
}
