//! The release of candle in a project's Cargo.toml, against the release that the ported code needs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use semver::{Version, VersionReq};
use serde::Serialize;
use toml::{Table, Value};

use crate::files;
use crate::syntax::exactly;

/// The crates whose types the ported code shares with this library.
const CRATES: [&str; 3] = ["candle-core", "candle-nn", "candle-transformers"];

/// The first release that this library works with; later releases of the same 0.x work too.
const NEEDED: Version = Version::new(0, 11, 1);

/// A release of candle other than the one needed.
#[derive(Serialize)]
pub struct Other {
    /// The Cargo.toml that names it.
    pub manifest: String,
    /// The crates and the releases found.
    pub found: String,
    pub needed: String,
}

/// The dependency on a crate, with the folder of the Cargo.toml that names its source.
struct Dependency<'m> {
    value: &'m Value,
    folder: &'m Path,
}

/// The release of candle in a manifest's package, if it is not the one needed, with the path of the
/// Cargo.toml that names it.
pub fn other(manifest: &Path) -> Option<(PathBuf, Other)> {
    let package = parsed(manifest)?;
    let root = root(manifest, &package);
    let folder = manifest.parent()?;
    let root_folder = root.as_ref().map_or(folder, |(path, _)| path.as_path());
    let lock = parsed(&root_folder.join("Cargo.lock"));
    // Crates from one source are reported together.
    let mut found = BTreeMap::<String, Vec<&str>>::new();
    let mut at = folder;
    for (key, value) in dependencies(&package) {
        let inherited = value.get("workspace").and_then(Value::as_bool) == Some(true);
        let of_root = || {
            let (folder, table) = root.as_ref()?;
            let value = table.get("workspace")?.get("dependencies")?.get(key)?;
            Some(Dependency { value, folder })
        };
        let named = Dependency { value, folder };
        let dependency = if inherited { of_root() } else { Some(named) };
        let other = dependency.and_then(|one| {
            let name = one.name(key)?;
            Some((name, one.is_other(name, lock.as_ref())?, one.folder))
        });
        if let Some((name, is, folder)) = other {
            at = folder;
            let names = found.entry(is).or_default();
            names.extend((!names.contains(&name)).then_some(name));
        }
    }
    let found = found.iter().map(|(is, names)| said(names, is)).collect::<Vec<_>>().join(", ");
    let path = at.join("Cargo.toml");
    let (manifest, needed) = (path.display().to_string(), NEEDED.to_string());
    (!found.is_empty()).then_some((path, Other { manifest, found, needed }))
}

/// The name of a manifest's package as it is written in code.
pub fn package(manifest: &Path) -> Option<String> {
    let package = parsed(manifest)?;
    let name = package.get("package")?.get("name")?.as_str()?;
    Some(name.replace('-', "_"))
}

/// A sentence such as `a, b and c are 0.8`.
fn said(names: &[&str], is: &str) -> String {
    match names {
        [] => is.to_owned(),
        [name] => format!("{name} is {is}"),
        [first @ .., last] => format!("{} and {last} are {is}", first.join(", ")),
    }
}

fn parsed(path: &Path) -> Option<Table> {
    files::read(path).ok()?.parse().ok()
}

/// The workspace's folder and manifest.
fn root(manifest: &Path, package: &Table) -> Option<(PathBuf, Table)> {
    let folder = manifest.parent()?;
    if package.contains_key("workspace") {
        return Some((folder.to_path_buf(), package.clone()));
    }
    folder.ancestors().skip(1).find_map(|folder| {
        let table = parsed(&folder.join("Cargo.toml"))?;
        table.contains_key("workspace").then(|| (folder.to_path_buf(), table))
    })
}

/// The dependencies of a package, including those for specific targets.
fn dependencies(manifest: &Table) -> impl Iterator<Item = (&String, &Value)> {
    let targets = entries(manifest.get("target"));
    let of_targets = targets.flat_map(|(_, target)| entries(target.get("dependencies")));
    entries(manifest.get("dependencies")).chain(of_targets)
}

fn entries(table: Option<&Value>) -> impl Iterator<Item = (&String, &Value)> {
    table.and_then(Value::as_table).into_iter().flatten()
}

impl Dependency<'_> {
    /// The crate of candle behind a dependency's name.
    fn name(&self, key: &str) -> Option<&'static str> {
        let package = self.value.get("package").and_then(Value::as_str);
        let name = package.unwrap_or(key).replace('_', "-");
        CRATES.into_iter().find(|one| *one == name)
    }

    /// The version and the source, if they are not the ones needed.
    fn is_other(&self, name: &str, lock: Option<&Table>) -> Option<String> {
        let text = |key: &str| self.value.get(key).and_then(Value::as_str);
        let wanted = self.value.as_str().or_else(|| text("version"));
        let locked = || locked(lock?, name, text("git"));
        if let Some(git) = text("git") {
            let version = locked().or_else(|| wanted.map(str::to_owned));
            let commit = ["rev", "tag", "branch"].into_iter().find_map(text);
            let what = version.or_else(|| commit.map(str::to_owned));
            return Some(match what {
                Some(what) => format!("{what} of {git}"),
                None => format!("of {git}"),
            });
        }
        if let Some(path) = text("path") {
            let version = version(&self.folder.join(path).join("Cargo.toml"));
            let what = version.map_or_else(String::new, |version| format!("{version} "));
            return Some(format!("{what}of the folder {path}"));
        }
        let wanted = wanted?;
        let fits = VersionReq::parse(wanted).is_ok_and(|wanted| fits(&wanted));
        (!fits).then(|| locked().unwrap_or_else(|| wanted.to_owned()))
    }
}

/// Whether a requirement allows a suitable version.
fn fits(wanted: &VersionReq) -> bool {
    let mut later = NEEDED.patch..NEEDED.patch + 100;
    later.any(|patch| wanted.matches(&Version { patch, ..NEEDED }))
}

/// The version of a crate in a Cargo.lock, if it is listed: from a repository, or from the
/// registry.
fn locked(lock: &Table, name: &str, git: Option<&str>) -> Option<String> {
    let versions = lock.get("package")?.as_array()?.iter().filter(|one| {
        let text = |key: &str| one.get(key).and_then(Value::as_str).unwrap_or_default();
        let source = git.map_or_else(|| "registry+".to_owned(), |git| format!("git+{git}"));
        text("name") == name && text("source").starts_with(&source)
    });
    let [version] = exactly(versions)?;
    Some(version.get("version")?.as_str()?.to_owned())
}

/// The version of a package, which its workspace may state.
fn version(manifest: &Path) -> Option<String> {
    let package = parsed(manifest)?;
    let version = package.get("package")?.get("version")?;
    if let Some(version) = version.as_str() {
        return Some(version.to_owned());
    }
    let (_, root) = root(manifest, &package)?;
    let version = root.get("workspace")?.get("package")?.get("version")?;
    Some(version.as_str()?.to_owned())
}
