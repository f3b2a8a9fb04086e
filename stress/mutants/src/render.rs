//! A file with all its mutants in it, each behind a switch.

use std::collections::HashSet;
use std::ops::Range;

use crate::sites::{Binary, Found, Kind, Site};

/// The kind of a range of the rendered file: smaller ones are within larger ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Region {
    Function(usize),
    Site(usize),
    Mutant(u32),
}

pub struct Rendered {
    pub text: String,
    pub regions: Vec<(Range<usize>, Region)>,
}

/// Characters that no source has: around the number of a region, and where it ends.
const OPEN: char = '\u{E000}';
const CLOSE: char = '\u{E001}';
const END: char = '\u{E002}';

/// Mutants have numbers from `first` on, in the order of their sites; none of `dropped` is made.
pub fn render(text: &str, found: &Found, first: u32, dropped: &HashSet<u32>) -> Rendered {
    let mut edits = Edits::default();
    for (index, body) in found.functions.iter().enumerate() {
        edits.around(body, format!("{OPEN}F{index}{CLOSE}"), END.to_string());
    }
    let mut number = first;
    for (index, site) in found.sites.iter().enumerate() {
        let numbers = number..number + site.names.len() as u32;
        number = numbers.end;
        let live: Vec<Option<u32>> = numbers
            .map(|n| (!dropped.contains(&n)).then_some(n))
            .collect();
        if live.iter().any(Option::is_some) {
            place(&mut edits, text, index, site, &live);
        }
    }
    strip(&edits.apply(text))
}

fn on(number: u32) -> String {
    format!("crate::mutant_switch::on({number})")
}

fn marked(number: u32, code: &str) -> String {
    format!("{OPEN}M{number}{CLOSE}{code}{END}")
}

/// `if on(1) { .. } else if on(2) { .. } else { original }`, with `code` of each operator.
fn choice(
    text: &str,
    live: &[Option<u32>],
    binary: &Binary,
    code: impl Fn(&str) -> String,
) -> String {
    let mut chosen = String::new();
    for (number, other) in live.iter().zip(&binary.others) {
        if let Some(number) = number {
            let code = marked(*number, &code(other));
            chosen += &format!("if {} {{ {code} }} else ", on(*number));
        }
    }
    format!("{chosen}{{ {} }}", code(&text[binary.op.clone()]))
}

/// For each mutant of a body that is live, an early return of its value.
fn returns(values: &[String], live: &[Option<u32>]) -> String {
    let live = live.iter().zip(values);
    let live = live.filter_map(|(number, value)| Some(((*number)?, value)));
    let early = live.map(|(number, value)| {
        let returned = marked(number, &format!("return {value};"));
        format!(" if {} {{ {returned} }}", on(number))
    });
    early.collect()
}

fn unary(
    edits: &mut Edits,
    text: &str,
    open: &str,
    number: u32,
    [op, operand]: [&Range<usize>; 2],
) {
    let (name, switch) = (&text[op.clone()], on(number));
    let plain = marked(number, "mutant_v");
    let chosen = format!("if {switch} {{ {plain} }} else {{ {name}mutant_v }}");
    edits.around(
        &(op.start..operand.end),
        format!("{open}(match ("),
        format!(") {{ mutant_v => {chosen} }}){END}"),
    );
    edits.replace(op, "");
}

fn place(edits: &mut Edits, text: &str, index: usize, site: &Site, live: &[Option<u32>]) {
    let site_open = format!("{OPEN}S{index}{CLOSE}");
    let around = |binary: &Binary| binary.lhs.start..binary.rhs.end;
    match &site.kind {
        Kind::Body(at, values) => {
            let code = site_open + &returns(values, live);
            edits.insert(*at, format!("{code}{END}"));
        }
        Kind::Compare(binary) | Kind::Arithmetic(binary) => {
            let (taken, used) = match &site.kind {
                Kind::Compare(_) => ("&", "*"),
                _ => ("", ""),
            };
            let code = |op: &str| format!("{used}mutant_l {op} {used}mutant_r");
            let chosen = choice(text, live, binary, code);
            edits.around(
                &around(binary),
                format!("{site_open}(match ({taken}("),
                format!(")) {{ (mutant_l, mutant_r) => {chosen} }}){END}"),
            );
            edits.replace(&binary.op, &format!("), {taken}("));
        }
        Kind::Logic(binary) => {
            let [Some(number)] = live else { return };
            let same = if &text[binary.op.clone()] == "&&" {
                "=="
            } else {
                "!="
            };
            edits.around(
                &around(binary),
                format!("{site_open}({{ let mutant_l: bool = "),
                format!(" }} }}){END}"),
            );
            let switch = on(*number);
            edits.replace(
                &binary.op,
                &format!("; if mutant_l {same} {switch} {{ mutant_l }} else {{ "),
            );
        }
        Kind::Assign(binary) => {
            let lhs = &text[binary.lhs.clone()];
            let chosen = choice(text, live, binary, |op| format!("{lhs} {op} mutant_r"));
            let whole = binary.lhs.start..binary.op.end;
            edits.replace(&whole, &format!("{site_open}(match ("));
            edits.insert_behind(
                binary.rhs.end,
                format!(") {{ mutant_r => {{ {chosen} }} }}){END}"),
            );
        }
        Kind::Unary { op, operand } => {
            let [Some(number)] = live else { return };
            unary(edits, text, &site_open, *number, [op, operand]);
        }
        Kind::Arm(at) => {
            let [Some(number)] = live else { return };
            edits.insert(*at, format!("{site_open} if !{}{END}", on(*number)));
        }
        Kind::GuardedArm(guard) => {
            let [Some(number)] = live else { return };
            edits.around(
                guard,
                format!("{site_open}!{} && (", on(*number)),
                format!("){END}"),
            );
        }
        Kind::Guard(guard) => {
            let [to_true, to_false] = live else { return };
            let to_true = to_true.map(|number| format!("{} || ", on(number)));
            let to_false = to_false.map(|number| format!("!{} && ", on(number)));
            let before = to_true.unwrap_or_default() + &to_false.unwrap_or_default();
            edits.around(guard, format!("{site_open}{before}("), format!("){END}"));
        }
    }
}

/// Changes to a text: what stands around a range of another one's is farther from it.
#[derive(Default)]
struct Edits {
    /// Where, in which order there, up to where the text is replaced, and by what.
    edits: Vec<(usize, (u8, isize), usize, String)>,
}

impl Edits {
    fn add(&mut self, at: usize, class: u8, order: isize, end: usize, text: String) {
        self.edits.push((at, (class, order), end, text));
    }

    fn insert(&mut self, at: usize, text: String) {
        let order = self.edits.len() as isize;
        self.add(at, 1, order, at, text);
    }

    fn insert_behind(&mut self, at: usize, text: String) {
        let order = -(self.edits.len() as isize);
        self.add(at, 0, order, at, text);
    }

    fn around(&mut self, range: &Range<usize>, before: String, after: String) {
        let order = self.edits.len() as isize;
        self.add(range.start, 1, order, range.start, before);
        self.add(range.end, 0, -order, range.end, after);
    }

    fn replace(&mut self, range: &Range<usize>, text: &str) {
        self.add(range.start, 2, 0, range.end, text.to_owned());
    }

    fn apply(mut self, text: &str) -> String {
        self.edits.sort_by_key(|(at, order, ..)| (*at, *order));
        let mut out = String::new();
        let mut done = 0;
        for (at, _, end, insertion) in self.edits {
            // Within a range that is replaced as a whole, such as the place of an assignment.
            if at < done {
                continue;
            }
            out += &text[done..at];
            out += &insertion;
            done = end;
        }
        out + &text[done..]
    }
}

fn strip(marked: &str) -> Rendered {
    let (mut text, mut regions, mut open) = (String::new(), Vec::new(), Vec::new());
    let mut rest = marked;
    while let Some(at) = rest.find([OPEN, END]) {
        text += &rest[..at];
        let mark = &rest[at..];
        if let Some(mark) = mark.strip_prefix(OPEN) {
            let close = mark.find(CLOSE).expect("a mark is closed");
            let (kind, number) = mark[..close].split_at(1);
            let number: u32 = number.parse().expect("the number of a mark");
            let region = match kind {
                "F" => Region::Function(number as usize),
                "S" => Region::Site(number as usize),
                _ => Region::Mutant(number),
            };
            open.push((text.len(), region));
            rest = &mark[close + CLOSE.len_utf8()..];
        } else {
            if let Some((start, region)) = open.pop() {
                regions.push((start..text.len(), region));
            }
            rest = &mark[END.len_utf8()..];
        }
    }
    text += rest;
    Rendered { text, regions }
}
