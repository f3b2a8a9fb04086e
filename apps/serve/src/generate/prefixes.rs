//! Prefixes: keys and values of texts that were read, for texts that begin with the same tokens.
//!
//! Texts share whole pages, which nobody writes again. A page counts once, however many texts hold
//! it.

use std::collections::HashMap;
use std::sync::Arc;

use super::model::PAGE;
use crate::places::{Permit, Places};

/// A page of keys and values, free again when the last text that holds it drops it.
pub type Page = Arc<Permit>;

/// The tokens of whole pages of so many tokens.
pub fn whole_pages(tokens: usize) -> usize {
    tokens / PAGE * PAGE
}

/// A text whose beginning others may share.
pub struct Donor<'a, C> {
    /// The tokens that may be shared.
    pub tokens: &'a [u32],
    pub cache: &'a C,
    /// The pages of these tokens, or more.
    pub pages: &'a [Page],
}

pub struct Entry<C> {
    /// The tokens of all pages.
    pub tokens: Vec<u32>,
    pub cache: C,
    pub pages: Vec<Page>,
    /// The step of the last use.
    pub used: u64,
}

/// The start of a text.
pub struct Start<C> {
    /// The donor's cache, of which the first `length` tokens are shared.
    pub cache: Option<C>,
    pub length: usize,
    /// The pages of the whole text, shared ones first.
    pub pages: Vec<Page>,
}

/// The ended texts, and the pages of all texts.
pub struct Prefixes<C> {
    /// Whether texts share what they begin with.
    shares: bool,
    places: Places,
    entries: Vec<Entry<C>>,
    /// The number of pages that entries hold.
    pages: usize,
}

impl<C: Clone + 'static> Prefixes<C> {
    pub fn new(shares: bool, places: Places) -> Self {
        Self { shares, places, entries: Vec::new(), pages: 0 }
    }

    /// The number of pages that all texts hold, and of those that ended ones hold.
    pub fn counts(&self) -> [usize; 2] {
        [self.places.total - self.places.free(), self.pages]
    }

    /// Keeps an ended text, unless it has no page or another begins with all of it.
    pub fn add(&mut self, entry: Entry<C>) {
        if entry.tokens.is_empty() || !self.shares {
            return;
        }
        let whole = |known: &&mut Entry<C>| known.tokens.starts_with(&entry.tokens);
        if let Some(known) = self.entries.iter_mut().find(whole) {
            known.used = entry.used;
            return;
        }
        let is_useful = |known: &Entry<C>| !entry.tokens.starts_with(&known.tokens);
        self.entries.retain(is_useful);
        self.entries.push(entry);
        self.pages = self.holders().len();
    }

    /// Starts a text of `pages` pages with the longest prefix that it shares with an ended or a
    /// running text. Ended texts that were used longest ago are dropped while too few pages are
    /// free; `None`, and nothing is dropped, if running texts hold too many.
    pub fn start<'r>(
        &mut self,
        prompt: &[u32],
        pages: usize,
        running: impl Iterator<Item = Donor<'r, C>>,
        step: u64,
    ) -> Option<Start<C>> {
        let longest = self.longest(prompt, running, step);
        let (length, index, donor) =
            longest.map_or((0, None, None), |(length, index, donor)| (length, index, Some(donor)));
        let of_donor = donor.as_ref().map_or(&[][..], |donor| donor.pages);
        let mut held = of_donor[..length / PAGE].to_vec();
        let missing = pages - held.len();
        if !self.can_free(missing) {
            return None;
        }
        let cache = donor.map(|donor| donor.cache.clone());
        if let Some(index) = index {
            self.entries[index].used = step;
        }
        self.free(missing);
        let mut permit = self.places.take(missing)?;
        held.extend((0..missing).filter_map(|_| permit.split(1)).map(Arc::new));
        Some(Start { cache, length, pages: held })
    }

    /// The length of the longest prefix, among equal ones that which was used last, with its donor
    /// and the index of that among the ended texts; `None` if it has no page.
    fn longest<'a, 'r: 'a>(
        &'a self,
        prompt: &[u32],
        running: impl Iterator<Item = Donor<'r, C>>,
        step: u64,
    ) -> Option<(usize, Option<usize>, Donor<'a, C>)> {
        // The last token is read for its scores.
        let (_, most) = prompt.split_last().filter(|_| self.shares)?;
        let ended = self.entries.iter().enumerate();
        let ended = ended.map(|(index, entry)| (entry.used, Some(index), entry.donor()));
        let all = ended.chain(running.map(|donor| (step, None, donor)));
        let all = all.map(|(used, index, donor)| {
            let common = donor.tokens.iter().zip(most).take_while(|(a, b)| a == b).count();
            (whole_pages(common), used, index, donor)
        });
        let longest = all.max_by_key(|(length, used, ..)| (*length, *used));
        let (length, _, index, donor) = longest.filter(|(length, ..)| *length > 0)?;
        Some((length, index, donor))
    }

    /// Whether `count` pages are free, or would be without ended texts.
    fn can_free(&self, count: usize) -> bool {
        let free = self.places.free();
        let is_idle = |(page, entries): &&(&Page, usize)| Arc::strong_count(page) == *entries;
        free >= count || free + self.holders().values().filter(is_idle).count() >= count
    }

    /// Drops the ended texts that were used longest ago until `count` pages are free.
    fn free(&mut self, count: usize) {
        if self.places.free() >= count {
            return;
        }
        self.entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        while self.places.free() < count && self.entries.pop().is_some() {}
        self.pages = self.holders().len();
    }

    /// The pages that entries hold, by address, with the number of entries that hold each.
    fn holders(&self) -> HashMap<*const Permit, (&Page, usize)> {
        let mut holders = HashMap::new();
        for page in self.entries.iter().flat_map(|entry| &entry.pages) {
            holders.entry(Arc::as_ptr(page)).or_insert((page, 0)).1 += 1;
        }
        holders
    }
}

impl<C> Entry<C> {
    fn donor(&self) -> Donor<'_, C> {
        Donor { tokens: &self.tokens, cache: &self.cache, pages: &self.pages }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::iter::empty;

    use super::*;

    /// A text of pages of one token each.
    fn text(pages: &[u32]) -> Vec<u32> {
        pages.iter().flat_map(|&token| [token; PAGE]).collect()
    }

    fn start(all: &mut Prefixes<u64>, tokens: &[u32], step: u64) -> Option<Start<u64>> {
        all.start(tokens, tokens.len().div_ceil(PAGE), empty(), step)
    }

    /// The whole pages of a text whose cache is the number of the step.
    fn ended(start: Start<u64>, tokens: &[u32], step: u64) -> Entry<u64> {
        let pages = tokens.len() / PAGE;
        Entry {
            tokens: tokens[..pages * PAGE].to_vec(),
            cache: step,
            pages: start.pages[..pages].to_vec(),
            used: step,
        }
    }

    fn add(all: &mut Prefixes<u64>, pages: &[u32], step: u64) {
        let start = start(all, &text(pages), step).unwrap();
        all.add(ended(start, &text(pages), step));
    }

    #[test]
    fn the_longest_prefix_is_shared() {
        let mut all = Prefixes::new(true, Places::new(20));
        let entries: [&[u32]; 4] = [&[1, 2, 3], &[1, 2, 4, 4], &[5], &[1, 2]];
        for (pages, step) in entries.into_iter().zip(1..) {
            add(&mut all, pages, step);
        }
        // The second shares two pages of the first, and the last is no entry.
        assert_eq!((all.counts(), all.entries.len()), ([6, 6], 3));
        for (tokens, length, cache) in [
            (text(&[1, 2, 3, 9]), 384, Some(1)),
            // The last token is read.
            (text(&[1, 2, 4])[..256].to_vec(), 128, Some(2)),
            (text(&[1, 2, 4, 4])[..400].to_vec(), 384, Some(2)),
            (text(&[5, 6]), 128, Some(3)),
            (text(&[5])[..127].to_vec(), 0, None),
        ] {
            let start = start(&mut all, &tokens, 2).unwrap();
            assert_eq!((start.length, start.cache), (length, cache), "{tokens:?}");
        }
    }

    #[test]
    fn the_text_that_was_used_longest_ago_makes_room() {
        let mut all = Prefixes::new(true, Places::new(6));
        for step in 1..4 {
            add(&mut all, &[step as u32; 2], step);
        }
        let kept = |all: &Prefixes<u64>| {
            let mut caches: Vec<u64> = all.entries.iter().map(|entry| entry.cache).collect();
            caches.sort_unstable();
            caches
        };
        // A text of less than a page uses none.
        let short = start(&mut all, &text(&[7])[..9], 4);
        all.add(ended(short.unwrap(), &[], 4));
        // The second is used, so the first is dropped.
        start(&mut all, &text(&[2, 9]), 5).unwrap();
        assert_eq!(kept(&all), [2, 3]);
        let running = start(&mut all, &text(&[2; 4]), 6).unwrap();
        assert_eq!((running.length, all.counts()), (256, [6, 4]));
        // Nothing is dropped where that is not enough: pages of running texts stay.
        assert!(start(&mut all, &text(&[4; 3]), 7).is_none());
        assert_eq!(kept(&all), [2, 3]);
        start(&mut all, &text(&[4; 2]), 8).unwrap();
        assert_eq!(kept(&all), [2]);
        drop(running);
        // Even the donor leaves when its other pages are needed.
        add(&mut all, &[2; 6], 9);
        let last = start(&mut all, &text(&[2, 8, 8, 8, 8, 8]), 10).unwrap();
        assert_eq!((last.length, all.counts()), (128, [6, 0]));
    }

    /// Texts that come and go: no page is lost, counted twice, or shared by different beginnings,
    /// and what fits alone joins.
    #[test]
    fn pages_are_counted_exactly() {
        let mut all = Prefixes::new(true, Places::new(9));
        let mut running: Vec<(Vec<u32>, Start<u64>)> = Vec::new();
        for step in 0..4000 {
            let random = (step as u32 + 1).wrapping_mul(0x9e37_79b9) >> 8;
            let count = 1 + random as usize % 5;
            let tokens: Vec<u32> = (5..5 + count).map(|bit| random >> bit & 1).collect();
            let tokens = &text(&tokens)[random as usize % 7..];
            let donors = running.iter().map(|(tokens, start)| Donor {
                tokens: &tokens[..tokens.len() / PAGE * PAGE],
                cache: &0,
                pages: &start.pages,
            });
            let start = all.start(tokens, count, donors, step);
            assert!(start.is_some() || !running.is_empty(), "{step}");
            running.extend(start.map(|start| (tokens.to_vec(), start)));
            if random.is_multiple_of(3) || running.len() > 3 {
                let (tokens, start) = running.swap_remove(random as usize % running.len());
                all.add(ended(start, &tokens, step));
            }
            let mut beginnings = HashMap::new();
            let ended = all.entries.iter().map(|e| (&e.tokens, &e.pages));
            for (tokens, pages) in ended.chain(running.iter().map(|(t, start)| (t, &start.pages))) {
                for (index, page) in pages.iter().enumerate() {
                    let beginning = &tokens[..tokens.len().min((index + 1) * PAGE)];
                    let known = beginnings.insert(Arc::as_ptr(page), beginning);
                    assert_eq!(known.unwrap_or(beginning), beginning, "{step}");
                }
            }
            assert_eq!(all.counts()[0], beginnings.len(), "{step}");
        }
    }
}
