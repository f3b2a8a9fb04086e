//! Lists of paths in short: `layer.0.query`, `layer.0.key`, `layer.1.query` and `layer.1.key` are
//! `layer.{0-1}.{query,key}`.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

/// Paths that are every combination of one alternative a segment.
struct PathPattern<'a> {
    segments: Vec<Vec<&'a str>>,
    /// Index of its first path in the list.
    first: usize,
}

/// Some of the paths, as one text.
pub(crate) struct Folded {
    pub text: String,
    /// Index of its first path in the list.
    pub first: usize,
    /// The number of paths.
    pub count: usize,
}

/// Folds a list of paths into patterns that together cover each of them once and nothing else, in
/// the order of their first paths.
pub(crate) fn fold<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<Folded> {
    let mut seen = HashSet::new();
    let distinct = paths.into_iter().enumerate().filter(|(_, path)| seen.insert(*path));
    let mut patterns: Vec<_> = distinct
        .map(|(first, path)| PathPattern {
            segments: path.split('.').map(|segment| vec![segment]).collect(),
            first,
        })
        .collect();
    let deepest = patterns.iter().map(|p| p.segments.len()).max();
    for position in (0..deepest.unwrap_or(0)).rev() {
        patterns = merge(patterns, position);
    }
    let folded = patterns.into_iter().map(|PathPattern { segments, first }| {
        let texts: Vec<_> = segments.iter().map(|s| alternatives(s)).collect();
        Folded { text: texts.join("."), first, count: segments.iter().map(Vec::len).product() }
    });
    folded.collect()
}

/// Merges the patterns that differ in the segment at `position` only.
fn merge(patterns: Vec<PathPattern<'_>>, position: usize) -> Vec<PathPattern<'_>> {
    let mut merged: Vec<PathPattern<'_>> = Vec::new();
    let mut alike = HashMap::new();
    for mut pattern in patterns {
        let Some(segment) = pattern.segments.get_mut(position) else {
            merged.push(pattern);
            continue;
        };
        let alternatives = std::mem::take(segment);
        match alike.entry(pattern.segments.clone()) {
            Entry::Occupied(entry) => {
                let earlier: &mut PathPattern<'_> = &mut merged[*entry.get()];
                earlier.segments[position].extend(alternatives);
            }
            Entry::Vacant(entry) => {
                entry.insert(merged.len());
                pattern.segments[position] = alternatives;
                merged.push(pattern);
            }
        }
    }
    merged
}

/// A single segment as it is, several in braces: first the numbers, as ranges, then the names.
fn alternatives(segments: &[&str]) -> String {
    if let [only] = segments {
        return (*only).to_owned();
    }
    let (mut numbers, mut names) = (Vec::new(), Vec::new());
    for segment in segments {
        match number(segment) {
            Some(number) => numbers.push(number),
            None => names.push((*segment).to_owned()),
        }
    }
    let mut all = ranges(numbers);
    all.append(&mut names);
    format!("{{{}}}", all.join(","))
}

/// The number that a segment is, if it is written as numbers are: `01` is a name.
fn number(segment: &str) -> Option<u64> {
    let number: u64 = segment.parse().ok()?;
    (number.to_string() == segment).then_some(number)
}

/// `[4, 0, 2, 1]` as `["0-2", "4"]`.
fn ranges(mut numbers: Vec<u64>) -> Vec<String> {
    numbers.sort_unstable();
    numbers
        .chunk_by(|a, b| a.checked_add(1) == Some(*b))
        .map(|run| match run {
            [first, .., last] => format!("{first}-{last}"),
            run => run.iter().map(u64::to_string).collect(),
        })
        .collect()
}
