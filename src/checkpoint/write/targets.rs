//! The names of modules as compressed-tensors' targets.

use std::collections::{BTreeMap, BTreeSet};

use crate::name_regex::NameRegexes;

/// The targets of each group of modules, and the modules of `floats` that are ignored: modules that
/// are `listed`, and modules that a target matches too.
///
/// Names, not classes: a reader makes every module of a class a quantized one, also one without a
/// tensor of its own, such as a tied head.
pub fn targets(
    groups: &[BTreeSet<&str>],
    floats: &BTreeSet<&str>,
    listed: impl Fn(&str) -> bool,
) -> (Vec<BTreeSet<String>>, BTreeSet<String>) {
    let mut forms: BTreeMap<String, usize> = BTreeMap::new();
    for (number, group) in groups.iter().enumerate() {
        for name in group.iter().filter(|name| name.contains('.')) {
            forms.entry(pattern(name, true)).or_insert(number);
        }
    }
    let (patterns, owners): (Vec<String>, Vec<usize>) = forms.clone().into_iter().unzip();
    // A reader refuses too many: then names.
    let regexes = NameRegexes::start(&patterns).ok();
    let matched = |name: &str| regexes.as_ref().map_or_else(Vec::new, |all| all.all(name));
    // A form that two groups have in common tells neither.
    let mut shared = BTreeSet::new();
    for (number, group) in groups.iter().enumerate() {
        let of_others = |i: &usize| owners[*i] != number;
        shared.extend(group.iter().flat_map(|name| matched(name)).filter(of_others));
    }
    let is_target = |i: &usize| !shared.contains(i);
    let target = |name: &&str| match matched(name).into_iter().find(is_target) {
        Some(i) => format!("re:{}", patterns[i]),
        None => (*name).to_owned(),
    };
    let mut targets: Vec<BTreeSet<String>> =
        groups.iter().map(|group| group.iter().map(target).collect()).collect();
    // The head of GPT-NeoX, which transformers 5 renames.
    for target in targets.iter_mut().filter(|target| target.contains("embed_out")) {
        target.insert("lm_head".to_owned());
    }
    let ignored = floats.iter().filter_map(|name| {
        if matched(name).iter().any(is_target) {
            Some(format!("re:{}", pattern(name, false)))
        } else {
            listed(name).then(|| (*name).to_owned())
        }
    });
    (targets, ignored.collect())
}

/// The last part of a module's name.
pub fn last_name(module: &str) -> &str {
    module.rsplit('.').next().unwrap_or(module)
}

/// A regex that matches a module whatever stands before its name: `bert.encoder.x` is `encoder.x`
/// in a model without a head, and the other way round. With `any_number`, it matches other layers,
/// too.
fn pattern(name: &str, any_number: bool) -> String {
    let part = |part: &str| match part.parse::<u32>() {
        Ok(_) if any_number => r"\d+".to_owned(),
        _ => regex::escape(part),
    };
    let escaped = |name: &str| name.split('.').map(part).collect::<Vec<_>>().join(r"\.");
    match name.split_once('.') {
        None => format!("^{}$", regex::escape(name)),
        // A last part alone, with anything before it, would match many modules.
        Some((first, rest)) if rest == last_name(name) => {
            format!(r"^((.*\.)?{}\.)?{}$", escaped(first), escaped(rest))
        }
        Some((_, rest)) => format!(r"^(.*\.)?{}$", escaped(rest)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set<'a>(names: &[&'a str]) -> BTreeSet<&'a str> {
        names.iter().copied().collect()
    }

    fn check(groups: &[&[&str]], floats: &[&str], expected: &[&[&str]], ignored: &[&str]) {
        let sets: Vec<_> = groups.iter().map(|group| set(group)).collect();
        let (targets, ignore) = targets(&sets, &set(floats), |name| name == "head");
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected: Vec<BTreeSet<String>> = expected.iter().map(|names| strings(names)).collect();
        assert_eq!(targets, expected, "{groups:?}");
        assert_eq!(ignore, strings(ignored), "{groups:?}");
    }

    #[test]
    fn modules_of_all_layers_are_one_regex() {
        check(
            &[&["m.a.0.q", "m.a.1.q", "head"]],
            &["m.a.0.norm"],
            &[&[r"re:^(.*\.)?a\.\d+\.q$", "head"]],
            &[],
        );
        check(&[&["pool.x-y"]], &["head"], &[&[r"re:^((.*\.)?pool\.)?x\-y$"]], &["head"]);
    }

    #[test]
    fn what_stays_float_among_them_is_ignored() {
        check(
            &[&["m.a.0.q", "m.a.2.q"]],
            &["m.a.1.q"],
            &[&[r"re:^(.*\.)?a\.\d+\.q$"]],
            &[r"re:^(.*\.)?a\.1\.q$"],
        );
    }

    #[test]
    fn groups_that_share_a_form_have_names() {
        check(
            &[&["m.a.0.q", "m.a.0.k"], &["m.a.1.q"]],
            &[],
            &[&["m.a.0.q", r"re:^(.*\.)?a\.\d+\.k$"], &["m.a.1.q"]],
            &[],
        );
    }

    #[test]
    fn more_forms_than_a_reader_takes_are_names() {
        let names: Vec<String> = (0..300).map(|i| format!("a{i}.b{i}.c")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check(&[&names], &[], &[&names], &[]);
    }
}
