//! A `use` declaration: its place and its replacement.

use syn::{ItemUse, UseTree, Visibility};

use super::draft::Draft;
use super::render;
use super::scopes::{Leaf, Module, Origin, leaves};
use super::unit::Unit;

/// A `use` and its place.
pub struct Use<'a> {
    pub item: &'a ItemUse,
    pub module: Module,
    pub in_function: bool,
}

impl Use<'_> {
    /// Whether it can be merged with others: no attributes, no visibility, not in a function.
    pub fn is_plain(&self) -> bool {
        let inherited = matches!(self.item.vis, Visibility::Inherited);
        inherited && self.item.attrs.is_empty() && !self.in_function
    }
}

/// Edits a `use` with comments in place, if it is one list of candle_nn's names: its root if all
/// names move, else the names that move.
pub fn in_place(
    unit: &Unit<'_>,
    draft: &mut Draft,
    usage: &Use<'_>,
    stay: &[Leaf],
    moved: &[Leaf],
) -> bool {
    let UseTree::Path(root) = &usage.item.tree else {
        return false;
    };
    let UseTree::Group(group) = &*root.tree else {
        return false;
    };
    let mut items = group.items.iter();
    let flat = items.all(|tree| matches!(tree, UseTree::Name(_)));
    let in_nn = |leaf: &Leaf| leaf.path.get(1).is_some_and(|module| module == "nn");
    if !flat || !moved.iter().all(in_nn) || root.ident != "candle_nn" {
        return false;
    }
    let source = unit.source;
    if stay.is_empty() {
        let range = source.range(&root.ident);
        draft.edits.replace(range, "candle_dynquant::nn");
        return true;
    }
    for pair in group.items.pairs() {
        let (name, comma) = (*pair.value(), pair.punct());
        if moved.iter().any(|leaf| source.slice(name) == leaf.name) {
            let (name, comma) = (source.range(name), comma.map(|comma| source.range(*comma)));
            let range = name.start..comma.map_or(name.end, |comma| comma.end);
            draft.edits.replace(source.with_comments(range), "");
        }
    }
    true
}

/// Replaces a `use` by a `use` of these leaves.
pub fn replace(unit: &Unit<'_>, draft: &mut Draft, usage: &Use<'_>, leaves: &[Leaf]) {
    let source = unit.source;
    let whole = source.range(usage.item);
    let tail = source.start(&usage.item.use_token)..whole.end;
    let head = match usage.item.vis {
        Visibility::Inherited => String::new(),
        ref vis => format!("{} ", source.slice(vis)),
    };
    let mut text = render::uses(leaves, &head, source.indent(whole.start), source.newline());
    if usage.item.leading_colon.is_some() {
        text = text.replace("use ", "use ::");
    }
    draft.edits.replace(tail, text[head.len()..].to_owned());
}

/// The place for a module's imports from here: before those from candle_nn, else after those from
/// candle, else first. Returns whether it is the end of the existing imports.
pub fn place(unit: &Unit<'_>, module: &[String], here: &[&Use<'_>]) -> Option<(usize, bool)> {
    let range = |usage: &Use<'_>| unit.source.range(usage.item);
    let candle_nn = here.iter().find(|usage| {
        let first = leaves(usage.item).into_iter().next();
        let origin = first.map(|leaf| unit.types.scopes.resolve(module, &leaf.path));
        matches!(origin, Some(Origin::Nn(_)))
    });
    if let Some(usage) = candle_nn {
        return Some((range(usage).start, false));
    }
    let core = here.iter().rev().find(|usage| {
        let leaves = leaves(usage.item).into_iter();
        let mut roots = leaves.filter_map(|leaf| leaf.path.into_iter().next());
        roots.all(|root| root == "candle" || root == "candle_core")
    });
    match (core, here.first()) {
        (Some(usage), _) => Some((range(usage).end, true)),
        (None, Some(usage)) => Some((range(usage).start, false)),
        (None, None) => Some((first_item(unit, module)?, false)),
    }
}

fn first_item(unit: &Unit<'_>, module: &[String]) -> Option<usize> {
    let mut items = &unit.file.items;
    for name in module {
        let inner = items.iter().find_map(|item| match item {
            syn::Item::Mod(item) if item.ident == name => item.content.as_ref(),
            _ => None,
        });
        items = &inner?.1;
    }
    items.first().map(|item| unit.source.start(item))
}
