//! The tests, run with each mutant that they reach.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::Options;
use crate::build::{Built, Mutant, Tests};

/// Memory of a test, in kB: a mutant may ask for all.
const MEMORY: u64 = 8 << 20;

struct Test {
    /// The index of its executable.
    tests: usize,
    name: String,
    seconds: f64,
    reached: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq)]
enum End {
    Passed,
    Failed,
    /// It took many times as long as without a mutant.
    TimedOut,
}

/// The mutants that no test notices.
pub fn run<'a>(work: &Path, built: &'a Built, options: &Options) -> Result<Vec<&'a Mutant>> {
    let results = work.join("results");
    fs::create_dir_all(&results)?;
    let tests = traced(&results, built, options)?;
    let mut of_mutant: HashMap<u32, Vec<usize>> = HashMap::new();
    for (index, test) in tests.iter().enumerate() {
        for number in &test.reached {
            of_mutant.entry(*number).or_default().push(index);
        }
    }
    for all in of_mutant.values_mut() {
        all.sort_by(|a, b| tests[*a].seconds.total_cmp(&tests[*b].seconds));
    }

    let known_file = results.join("known");
    let known = fs::read_to_string(&known_file).unwrap_or_default();
    let known: HashMap<u32, String> = known
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(number, end)| Some((number.parse().ok()?, end.to_owned())))
        .collect();
    let file = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(&known_file)?;
    let known = Mutex::new((known, file));
    let mut tried: Vec<&Mutant> = (built.mutants.iter())
        .filter(|mutant| (mutant.number as usize).is_multiple_of(options.sample))
        .filter(|mutant| options.place(mutant).is_some())
        // For people who debug only.
        .filter(|mutant| !mutant.name.contains("Debug for "))
        .collect();
    tried.sort_by_key(|mutant| options.place(mutant));
    each(options.jobs, &tried, |mutant| {
        if known
            .lock()
            .expect("results")
            .0
            .contains_key(&mutant.number)
        {
            return Ok(());
        }
        let none = Vec::new();
        let reaching = of_mutant.get(&mutant.number).unwrap_or(&none);
        let end = noticed(mutant, reaching, &tests, &built.tests)?;
        println!("{end} {} (line {})", mutant.title(), mutant.line);
        let mut known = known.lock().expect("results");
        writeln!(known.1, "{} {end}", mutant.number)?;
        known.0.insert(mutant.number, end);
        Ok(())
    })?;

    let (known, _) = known.into_inner().expect("results");
    let mut figures: BTreeMap<&str, BTreeMap<&str, usize>> = BTreeMap::new();
    let mut missed = Vec::new();
    for mutant in tried {
        let end = known[&mutant.number].split(' ').next().unwrap_or_default();
        *figures
            .entry(mutant.room)
            .or_default()
            .entry(end)
            .or_default() += 1;
        if end.starts_with("un") {
            missed.push(mutant);
        }
    }
    for (room, ends) in figures {
        println!("{room}: {} tried, {ends:?}", ends.values().sum::<usize>());
    }
    Ok(missed)
}

/// Calls `with` with each item, on a number of threads.
fn each<T: Sync>(jobs: usize, items: &[T], with: impl Fn(&T) -> Result<()> + Sync) -> Result<()> {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let work = || -> Result<()> {
            while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                with(item)?;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("no panic"))
    })
}

/// Runs each test by itself: its time, and the mutants that it reaches.
fn traced(results: &Path, built: &Built, options: &Options) -> Result<Vec<Test>> {
    let mut names = Vec::new();
    for (index, tests) in built.tests.iter().enumerate() {
        let list = Command::new(&tests.executable)
            .arg("--list")
            .current_dir(&tests.folder)
            .output()?;
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        let of = list.lines().filter_map(|line| line.strip_suffix(": test"));
        names.extend(of.map(|name| (index, name.to_owned())));
    }
    let all = Mutex::new(Vec::new());
    each(options.jobs, &names, |(index, name)| {
        let tests = &built.tests[*index];
        let stem = tests
            .executable
            .file_name()
            .context("a name")?
            .to_string_lossy()
            .into_owned();
        // The name of an executable has a hash of what it was built from.
        let trace = results.join(format!("{stem}-{}", name.replace("::", "-")));
        let times = trace.with_extension("seconds");
        if !fs::metadata(&times).is_ok_and(|old| is_older(&tests.executable, &old)) {
            let _ = fs::remove_file(&trace);
            let start = Instant::now();
            let variable = ("DYNQUANT_MUTANT_TRACE", trace.display().to_string());
            let end = execute(tests, &[name], &variable, 600.)?;
            let seconds = start.elapsed().as_secs_f64();
            if end != End::Passed {
                println!("{name} fails without a mutant, and is left out");
                fs::write(&times, "none")?;
                return Ok(());
            }
            fs::write(&times, seconds.to_string())?;
        }
        let Ok(seconds) = fs::read_to_string(&times)?.parse() else {
            return Ok(());
        };
        let reached = fs::read_to_string(&trace).unwrap_or_default();
        all.lock().expect("a list").push(Test {
            tests: *index,
            name: name.clone(),
            seconds,
            reached: reached
                .lines()
                .filter_map(|line| line.parse().ok())
                .collect(),
        });
        Ok(())
    })?;
    let all = all.into_inner().expect("a list");
    if all.is_empty() {
        bail!("expected tests, got none");
    }
    let seconds: f64 = all.iter().map(|test| test.seconds).sum();
    println!("{} tests take {seconds:.0} s", all.len());
    Ok(all)
}

fn is_older(executable: &Path, than: &fs::Metadata) -> bool {
    let time = fs::metadata(executable).and_then(|of| of.modified());
    time.is_ok_and(|time| than.modified().is_ok_and(|than| time < than))
}

/// How the mutant fared: the quickest tests come first.
fn noticed(
    mutant: &Mutant,
    reaching: &[usize],
    tests: &[Test],
    executables: &[Tests],
) -> Result<String> {
    if reaching.is_empty() {
        return Ok("unreached".into());
    }
    let variable = ("DYNQUANT_MUTANT", mutant.number.to_string());
    let (mut rest, mut size) = (reaching, 3);
    while !rest.is_empty() {
        let (batch, others) = rest.split_at(size.min(rest.len()));
        (rest, size) = (others, 4 * size);
        let mut by_executable: BTreeMap<usize, (Vec<&String>, f64)> = BTreeMap::new();
        for test in batch.iter().map(|index| &tests[*index]) {
            let of = by_executable.entry(test.tests).or_default();
            of.0.push(&test.name);
            of.1 += test.seconds;
        }
        for (index, (names, seconds)) in by_executable {
            let end = execute(&executables[index], &names, &variable, 20. + 10. * seconds)?;
            if end != End::Passed {
                let by = executables[index]
                    .executable
                    .file_name()
                    .unwrap_or_default();
                let end = if end == End::Failed {
                    "noticed"
                } else {
                    "hung"
                };
                return Ok(format!("{end} {}", by.display()));
            }
        }
    }
    Ok("unnoticed".into())
}

/// Runs these tests of an executable, within a limit in seconds of the CPU, or three times that by
/// the clock.
fn execute(
    tests: &Tests,
    names: &[&String],
    variable: &(&str, String),
    seconds: f64,
) -> Result<End> {
    let limits = format!(
        "ulimit -t {} -v {MEMORY}; exec \"$0\" \"$@\"",
        seconds.ceil()
    );
    let mut child = Command::new("sh")
        .args(["-c", &limits])
        .arg(&tests.executable)
        .args(["--exact", "--test-threads", "2"])
        .args(names)
        .current_dir(&tests.folder)
        .env(variable.0, &variable.1)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    let start = Instant::now();
    let limit = Duration::from_secs_f64(3. * seconds);
    let end = loop {
        if let Some(status) = child.try_wait()? {
            use std::os::unix::process::ExitStatusExt as _;
            break match (status.success(), status.signal()) {
                (true, _) => End::Passed,
                // SIGXCPU, SIGKILL
                (_, Some(24 | 9)) => End::TimedOut,
                _ => End::Failed,
            };
        }
        if start.elapsed() > limit {
            break End::TimedOut;
        }
        thread::sleep(Duration::from_millis(5));
    };
    // Children too: a command that a test has started may hang.
    let group = format!("-{}", child.id());
    let _ = Command::new("kill")
        .args(["-KILL", "--", &group])
        .stderr(Stdio::null())
        .status();
    child.wait()?;
    Ok(end)
}
