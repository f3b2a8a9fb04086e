//! One `use` declaration: where it stands, and another in its place.

use syn::spanned::Spanned;
use syn::{ItemUse, Visibility};

use super::draft::Draft;
use super::render;
use super::scopes::{Leaf, Module, Origin, leaves};
use super::unit::Unit;

/// A `use` and where it stands.
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

/// Changes a `use` with comments without writing it anew, if it is one list of candle_nn's names:
/// its root where all of them go, else the names that go.
pub fn in_place(
    unit: &Unit<'_>,
    draft: &mut Draft,
    usage: &Use<'_>,
    stay: &[Leaf],
    moved: &[Leaf],
) -> bool {
    let syn::UseTree::Path(root) = &usage.item.tree else {
        return false;
    };
    let syn::UseTree::Group(group) = &*root.tree else {
        return false;
    };
    let flat = group
        .items
        .iter()
        .all(|tree| matches!(tree, syn::UseTree::Name(_)));
    let in_nn = moved
        .iter()
        .all(|leaf| leaf.path.get(1).is_some_and(|module| module == "nn"));
    if !flat || !in_nn || root.ident != "candle_nn" {
        return false;
    }
    let source = unit.source;
    if stay.is_empty() {
        draft
            .edits
            .replace(source.range(&root.ident), "candle_dynquant::nn");
        return true;
    }
    for pair in group.items.pairs() {
        let goes = moved
            .iter()
            .any(|leaf| source.slice(*pair.value()) == leaf.name);
        if goes {
            let end = pair
                .punct()
                .map_or(source.range(*pair.value()).end, |comma| {
                    source.range(*comma).end
                });
            let range = source.with_comments(source.range(*pair.value()).start..end);
            draft.edits.replace(range, "");
        }
    }
    true
}

/// Puts a `use` of these leaves in the place of another.
pub fn replace(unit: &Unit<'_>, draft: &mut Draft, usage: &Use<'_>, leaves: &[Leaf]) {
    let source = unit.source;
    let whole = source.range(usage.item);
    let tail = source.range(&usage.item.use_token).start..whole.end;
    let head = match usage.item.vis {
        Visibility::Inherited => String::new(),
        ref vis => format!("{} ", source.slice(vis)),
    };
    let colon = if usage.item.leading_colon.is_some() {
        "::"
    } else {
        ""
    };
    let text = render::uses(leaves, &head, source.indent(whole.start), source.newline());
    let text = if colon.is_empty() {
        text
    } else {
        text.replace("use ", "use ::")
    };
    draft.edits.replace(tail, text[head.len()..].to_owned());
}

/// Where a module's imports from here belong: before those from candle_nn, else after those from
/// candle, else first. Whether it is the end of what is there.
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
        let roots = leaves(usage.item)
            .into_iter()
            .map(|leaf| leaf.path.into_iter().next());
        roots
            .flatten()
            .all(|root| root == "candle" || root == "candle_core")
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
    items
        .first()
        .map(|item| unit.source.range(&item.span()).start)
}
