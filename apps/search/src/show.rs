//! Answers as text: ranked, with file and lines, the words of the query highlighted.

use std::fmt::Write;
use std::ops::Range;

use anstyle::{AnsiColor, Style};
use dynquant_embed::program::print;

use crate::highlight::Words;
use crate::search::{Answer, Hit, Occurrence};

/// The most characters of a line.
const WIDTH: usize = 240;

/// How answers are shown.
#[derive(Clone, Copy, Debug)]
pub struct Show {
    /// The most lines of a passage.
    pub lines: usize,
    /// Whether there are colours.
    pub color: bool,
}

impl Show {
    /// All results of an answer.
    pub fn answer(&self, answer: &Answer) -> String {
        let words = Words::new(&answer.query);
        let mut out = String::new();
        for (index, hit) in answer.results.iter().enumerate() {
            self.hit(index + 1, hit, &words, &mut out);
        }
        out
    }

    fn hit(&self, rank: usize, hit: &Hit, words: &Words, out: &mut String) {
        let Some((first, others)) = hit.places.split_first() else {
            return;
        };
        let place = self.paint(AnsiColor::Magenta.on_default(), &place(first));
        let cosine = hit.cosine.map(|it| format!("cosine {it:.3}"));
        let bm25 = hit.bm25.map(|it| format!("BM25 {it:.2}"));
        let scores: Vec<String> = cosine.into_iter().chain(bm25).collect();
        let _ = writeln!(out, "{rank}. {place}  {}", scores.join(", "));
        match &hit.text {
            Some(text) => self.text(first.first_line, text, words, out),
            None => out.push_str(
                "    changed since it was indexed; `dynquant-search index` brings it up to date\n",
            ),
        }
        let others: Vec<String> = others
            .iter()
            .filter(|other| !other.changed)
            .map(self::place)
            .collect();
        let more = match hit.more {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        if !others.is_empty() || hit.more > 0 {
            let _ = writeln!(out, "    the same text: {}{more}", others.join(", "));
        }
        out.push('\n');
    }

    /// The lines with most words of the query, numbered.
    fn text(&self, first_line: usize, text: &str, words: &Words, out: &mut String) {
        let lines: Vec<&str> = text.lines().collect();
        let shown = window(&lines, self.lines, words);
        for (index, line) in lines.iter().enumerate().take(shown.end).skip(shown.start) {
            let number = format!("{:>6}", first_line + index);
            let number = self.paint(AnsiColor::Green.on_default(), &number);
            let _ = writeln!(out, "{number}  {}", self.line(line, words));
        }
        if shown.len() < lines.len() {
            let _ = writeln!(out, "        ... {} of {} lines", shown.len(), lines.len());
        }
    }

    fn line(&self, line: &str, words: &Words) -> String {
        let line = clip(&print::escaped(line), words);
        let mut out = String::new();
        let mut end = 0;
        for word in words.find(&line) {
            out.push_str(&line[end..word.start]);
            let style = AnsiColor::Red.on_default().bold();
            out.push_str(&self.paint(style, &line[word.clone()]));
            end = word.end;
        }
        out + &line[end..]
    }

    fn paint(&self, style: Style, text: &str) -> String {
        if self.color {
            format!("{style}{text}{style:#}")
        } else {
            text.to_owned()
        }
    }
}

fn place(place: &Occurrence) -> String {
    let path = print::on_one_line(&place.path);
    if place.first_line == place.last_line {
        format!("{path}:{}", place.first_line)
    } else {
        format!("{path}:{}-{}", place.first_line, place.last_line)
    }
}

/// The first `count` lines in a row that have most words of the query.
fn window(lines: &[&str], count: usize, words: &Words) -> Range<usize> {
    let count = count.min(lines.len());
    let starts = 0..=lines.len() - count;
    let found = |&start: &usize| words.count(&lines[start..start + count].join("\n"));
    // `max_by_key` takes the last of equals.
    let start = starts.rev().max_by_key(found).unwrap_or(0);
    start..start + count
}

/// The part of a long line around the first word of the query.
fn clip(line: &str, words: &Words) -> String {
    if line.chars().count() <= WIDTH {
        return line.to_owned();
    }
    let word = words.find(line).first().map_or(0, |word| word.start);
    let before = line[..word].chars().count().saturating_sub(WIDTH / 4);
    let part: String = line.chars().skip(before).take(WIDTH).collect();
    let is_last = before + WIDTH >= line.chars().count();
    let (left, right) = (
        if before > 0 { "..." } else { "" },
        if is_last { "" } else { "..." },
    );
    format!("{left}{part}{right}")
}
