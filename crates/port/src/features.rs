//! Code that is compiled only for GPUs, by `cfg(feature = "cuda")` and the like.

use std::ops::Range;

use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Lit, Meta};

use super::source::{Extent, Source};
use super::walk::{get, part};

/// Features whose code does not run on a CPU.
const FEATURES: &[&str] = &["cuda", "cudnn", "flash-attn", "flash-attn-v1", "metal", "nccl"];

/// Whether the attributes exclude an item from a CPU build.
pub fn leave_out(attrs: &[Attribute]) -> bool {
    let cfgs = attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
    cfgs.filter_map(|attr| attr.parse_args::<Meta>().ok()).any(|condition| needs(&condition))
}

/// Whether a condition requires a GPU feature.
fn needs(condition: &Meta) -> bool {
    match condition {
        Meta::NameValue(pair) if pair.path.is_ident("feature") => {
            let name = get!(&pair.value, Expr::Lit).and_then(|value| get!(&value.lit, Lit::Str));
            name.is_some_and(|name| FEATURES.contains(&name.value().as_str()))
        }
        Meta::List(list) => {
            let parser = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
            let Ok(conditions) = list.parse_args_with(parser) else { return false };
            let mut conditions = conditions.iter();
            match list.path.get_ident().map(ToString::to_string).as_deref() {
                Some("all") => conditions.any(needs),
                Some("any") => conditions.len() > 0 && conditions.all(needs),
                _ => false,
            }
        }
        _ => false,
    }
}

/// The bytes of code in a file that a CPU build excludes.
pub fn left_out(source: &Source<'_>, file: &syn::File) -> Vec<Range<usize>> {
    struct GpuFinder<'s, 't> {
        source: &'s Source<'t>,
        found: Vec<Range<usize>>,
    }
    impl GpuFinder<'_, '_> {
        /// Whether the node is excluded; an excluded node is not visited.
        fn check(&mut self, node: &impl Extent, attrs: &[Attribute]) -> bool {
            let out = leave_out(attrs);
            self.found.extend(out.then(|| self.source.range(node)));
            out
        }
    }
    macro_rules! unless_left_out {
        ($($visit:ident $node:ident)*) => {$(
            fn $visit(&mut self, node: &'a syn::$node) {
                if !self.check(node, &node.attrs) {
                    visit::$visit(self, node);
                }
            }
        )*};
    }
    impl<'a> Visit<'a> for GpuFinder<'_, '_> {
        fn visit_item(&mut self, item: &'a syn::Item) {
            if !self.check(item, attributes(item)) {
                visit::visit_item(self, item);
            }
        }
        unless_left_out! {
            visit_impl_item_fn ImplItemFn
            visit_field Field
            visit_variant Variant
            visit_arm Arm
            visit_local Local
            visit_expr_block ExprBlock
            visit_expr_if ExprIf
            visit_expr_return ExprReturn
        }
    }
    if leave_out(&file.attrs) {
        return std::iter::once(0..source.text.len()).collect();
    }
    let mut find = GpuFinder { source, found: Vec::new() };
    find.visit_file(file);
    find.found
}

pub fn attributes(item: &syn::Item) -> &[Attribute] {
    let attrs =
        part!(item, attrs of Const Enum Fn Impl Macro Mod Static Struct Trait Type Union Use);
    attrs.map_or(&[], Vec::as_slice)
}
