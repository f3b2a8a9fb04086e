//! The copy of the tree with all mutants that compile, and its tests.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::render::{Region, Rendered, render};
use crate::sites::{Found, find};
use crate::{Options, rooms};

pub struct Mutant {
    pub number: u32,
    pub room: &'static str,
    pub file: String,
    pub line: usize,
    pub name: String,
}

impl Mutant {
    /// As scripts/mutants_explained.txt has it.
    pub fn title(&self) -> String {
        format!("{}: {}", self.file, self.name)
    }
}

/// An executable of tests, and the folder that it runs in.
pub struct Tests {
    pub executable: PathBuf,
    pub folder: PathBuf,
}

pub struct Built {
    pub mutants: Vec<Mutant>,
    pub tests: Vec<Tests>,
}

struct Source {
    path: String,
    text: String,
    found: Found,
    first: u32,
    rendered: Rendered,
}

pub fn build(root: &Path, work: &Path, options: &Options) -> Result<Built> {
    let tree = work.join("tree");
    fs::create_dir_all(&tree)?;
    let (dropped_file, built_file) = (work.join("dropped"), work.join("built"));
    let mut dropped: HashSet<u32> = HashSet::new();
    let mut built = options.wanted.clone();
    if options.keep {
        let kept = fs::read_to_string(&built_file).context("no build is there to be kept")?;
        built = kept.lines().map(str::to_owned).collect();
        let numbers = fs::read_to_string(&dropped_file).unwrap_or_default();
        dropped = numbers
            .lines()
            .filter_map(|line| line.parse().ok())
            .collect();
    } else {
        let _ = fs::remove_dir_all(work.join("results"));
        fs::write(&built_file, built.join("\n"))?;
    }
    let mut sources = copy(root, &tree, &built)?;
    for source in &mut sources {
        source.write(&tree, &dropped)?;
    }
    // A stage of the compiler is not reached while the one before has errors.
    loop {
        let errors = check(&tree)?;
        if errors.is_empty() {
            break;
        }
        let before = dropped.len();
        for error in &errors {
            drop_at(error, &sources, &mut dropped)?;
        }
        println!(
            "{} errors: {} mutants do not compile",
            errors.len(),
            dropped.len()
        );
        if dropped.len() == before {
            bail!("no mutant is at fault for {}", errors[0]["rendered"]);
        }
        let numbers: Vec<String> = dropped.iter().map(u32::to_string).collect();
        fs::write(&dropped_file, numbers.join("\n"))?;
        for source in &mut sources {
            source.write(&tree, &dropped)?;
        }
    }
    let mut mutants = Vec::new();
    for source in &sources {
        let names = source.found.sites.iter();
        let names = names.flat_map(|site| site.names.iter().map(|name| (site.line, name)));
        for ((line, name), number) in names.zip(source.first..) {
            if !dropped.contains(&number) {
                mutants.push(Mutant {
                    number,
                    room: rooms::of(&source.path).unwrap_or_default(),
                    file: source.path.clone(),
                    line,
                    name: name.clone(),
                });
            }
        }
    }
    let lines = mutants.iter();
    let lines = lines.map(|m| format!("{} {} (line {})\n", m.number, m.title(), m.line));
    fs::write(work.join("list"), lines.collect::<String>())?;
    Ok(Built {
        mutants,
        tests: tests(&tree, options)?,
    })
}

/// Writes what differs, so that nothing else is built again.
fn write(path: &Path, text: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    fs::create_dir_all(path.parent().context("a path has a parent")?)?;
    fs::write(path, text).with_context(|| path.display().to_string())
}

/// Copies what Git knows; returns the files that get mutants.
fn copy(root: &Path, tree: &Path, built: &[String]) -> Result<Vec<Source>> {
    let list = Command::new("git")
        .args([
            "ls-files",
            "-z",
            "--cached",
            "--others",
            "--exclude-standard",
        ])
        .current_dir(root)
        .output()?;
    let list = String::from_utf8(list.stdout)?;
    let mut sources = Vec::new();
    let mut first = 1;
    for path in list.split('\0').filter(|path| !path.is_empty()) {
        let Ok(bytes) = fs::read(root.join(path)) else {
            continue;
        };
        let room = rooms::of(path).filter(|_| path.ends_with(".rs"));
        if room.is_some_and(|room| built.iter().any(|built| built == room || built == path)) {
            let text = String::from_utf8(bytes)?;
            let found = find(&text).with_context(|| path.to_owned())?;
            let count: usize = found.sites.iter().map(|site| site.names.len()).sum();
            sources.push(Source {
                path: path.to_owned(),
                text,
                found,
                first,
                rendered: Rendered {
                    text: String::new(),
                    regions: Vec::new(),
                },
            });
            first += count as u32;
            continue;
        }
        let declares = rooms::CRATES.contains(&path);
        let bytes = if declares {
            with_switch(String::from_utf8(bytes)?).into_bytes()
        } else if path == "Cargo.toml" {
            // Mutants are warned of everywhere.
            let text = String::from_utf8(bytes)?;
            text.replace("\"deny\"", "\"allow\"").into_bytes()
        } else {
            bytes
        };
        write(&tree.join(path), &bytes)?;
    }
    for declaring in rooms::CRATES {
        let switch = tree.join(declaring).with_file_name("mutant_switch.rs");
        write(&switch, include_bytes!("switch.rs"))?;
    }
    println!("{} mutants in {} files", first - 1, sources.len());
    Ok(sources)
}

fn with_switch(text: String) -> String {
    text + "\n#[doc(hidden)]\npub mod mutant_switch;\n"
}

impl Source {
    fn write(&mut self, tree: &Path, dropped: &HashSet<u32>) -> Result<()> {
        self.rendered = render(&self.text, &self.found, self.first, dropped);
        let text = self.rendered.text.clone();
        let is_main = rooms::CRATES.contains(&&*self.path);
        let text = if is_main { with_switch(text) } else { text };
        write(&tree.join(&self.path), text.as_bytes())
    }

    /// The numbers of the mutants of a site.
    fn numbers(&self, site: usize) -> impl Iterator<Item = u32> {
        let before: usize = self.found.sites[..site]
            .iter()
            .map(|site| site.names.len())
            .sum();
        let first = self.first + before as u32;
        first..first + self.found.sites[site].names.len() as u32
    }
}

fn cargo(tree: &Path, command: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo
        .arg(command)
        .current_dir(tree)
        .args(["--message-format", "json"]);
    let packages = [
        "--package",
        "candle-dynquant",
        "--package",
        "dynquant",
        "--package",
        "candle-dynquant-io",
        "--package",
        "candle-dynquant-port",
        "--package",
        "candle-dynquant-fuzz-targets",
        "--package",
        "candle-dynquant-kernels",
    ];
    cargo.args(packages);
    // Of its own: the command's tests start the `dynquant` there, which another build would
    // replace.
    cargo.env("CARGO_TARGET_DIR", tree.join("../build"));
    cargo
}

fn messages(mut cargo: Command) -> Result<(bool, Vec<Value>)> {
    let out = cargo
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()?;
    let lines = String::from_utf8_lossy(&out.stdout).into_owned();
    let lines = lines
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok());
    Ok((out.status.success(), lines.collect()))
}

/// The errors of the compiler; without any, what the tests need is built.
fn check(tree: &Path) -> Result<Vec<Value>> {
    let mut cargo = cargo(tree, "build");
    cargo.args(["--lib", "--bins", "--keep-going"]);
    let (success, messages) = messages(cargo)?;
    let errors: Vec<Value> = messages
        .into_iter()
        .filter(|message| message["reason"] == "compiler-message")
        .map(|mut message| message["message"].take())
        .filter(|message| {
            message["level"] == "error" && !message["spans"].as_array().is_none_or(Vec::is_empty)
        })
        .collect();
    if !success && errors.is_empty() {
        bail!("cargo build failed");
    }
    Ok(errors)
}

/// Drops the mutants that an error comes from.
fn drop_at(error: &Value, sources: &[Source], dropped: &mut HashSet<u32>) -> Result<()> {
    let spans = error["spans"].as_array().context("spans")?;
    let primary = spans.iter().filter(|span| span["is_primary"] == true);
    let others = spans.iter().filter(|span| span["is_primary"] != true);
    let mut function = None;
    for span in primary.chain(others) {
        let file = span["file_name"].as_str().unwrap_or_default();
        let Some(source) = sources.iter().find(|source| source.path == file) else {
            continue;
        };
        let [start, end] =
            ["byte_start", "byte_end"].map(|key| span[key].as_u64().unwrap_or(0) as usize);
        let around = source.rendered.regions.iter();
        let mut around: Vec<_> = around
            .filter(|(r, _)| r.start <= start && end <= r.end)
            .collect();
        around.sort_by_key(|(range, _)| range.len());
        for (_, region) in around {
            match *region {
                Region::Mutant(number) => {
                    dropped.insert(number);
                    return Ok(());
                }
                Region::Site(site) => {
                    dropped.extend(source.numbers(site));
                    return Ok(());
                }
                Region::Function(index) => {
                    function.get_or_insert((source, index));
                }
            }
        }
    }
    if let Some((source, function)) = function {
        let sites = source.found.sites.iter().enumerate();
        for (site, _) in sites.filter(|(_, site)| site.function == function) {
            dropped.extend(source.numbers(site));
        }
    }
    Ok(())
}

/// Builds the tests.
fn tests(tree: &Path, options: &Options) -> Result<Vec<Tests>> {
    let mut cargo = cargo(tree, "test");
    cargo.arg("--no-run");
    if options.cargo.is_empty() {
        cargo.args(["--lib", "--bins", "--test", "*"])
    } else {
        cargo.args(&options.cargo)
    };
    let (success, messages) = messages(cargo)?;
    if !success {
        for message in messages.iter().filter(|m| m["message"]["level"] == "error") {
            eprintln!(
                "{}",
                message["message"]["rendered"].as_str().unwrap_or_default()
            );
        }
        bail!("the tests do not compile");
    }
    let tests = messages
        .iter()
        .filter(|message| message["profile"]["test"] == true);
    let tests = tests.filter_map(|message| {
        let manifest = Path::new(message["manifest_path"].as_str()?);
        Some(Tests {
            executable: message["executable"].as_str()?.into(),
            folder: manifest.parent()?.to_owned(),
        })
    });
    Ok(tests.collect())
}
