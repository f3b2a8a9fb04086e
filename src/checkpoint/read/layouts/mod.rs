//! Layouts of other libraries: their int8 weights get the names that compressed-tensors gives them,
//! so that later steps know one layout.

mod bitsandbytes;
mod layout;
mod quanto;
mod torchao;

use serde_json::Value;

use super::config::{METHOD, Quantization, unsupported};
use super::files::{CONFIG, Files};
use crate::error::Result;
use layout::{Found, Layout};

const LAYOUTS: [&dyn Layout; 3] = [
    &bitsandbytes::Bitsandbytes,
    &quanto::Quanto,
    &torchao::Torchao,
];

/// Renames the tensors of all layouts but compressed-tensors' own.
///
/// # Errors
/// When `config.json` names a method that is none of these, or a weight is not one that is read.
pub fn translate(files: &mut Files, config: &mut Quantization) -> Result<()> {
    if let Some((method, _)) = &config.foreign
        && !LAYOUTS.iter().any(|layout| layout.name() == method)
    {
        let libraries = LAYOUTS.iter().map(|layout| layout.name());
        let known: Vec<_> = std::iter::once(METHOD).chain(libraries).collect();
        let error = unsupported("quant_method", &known.join(", "), method);
        let folder = files.folder.as_deref().unwrap_or(files.path());
        return Err(error.in_file(&folder.join(CONFIG)));
    }
    for layout in LAYOUTS {
        let entry = match &config.foreign {
            Some((library, entry)) if library == layout.name() => entry,
            _ => &Value::Null,
        };
        let found = layout.find(files, entry);
        let Found {
            weights,
            settings,
            metadata,
        } = found.map_err(|e| e.in_file(files.path()))?;
        for weight in weights {
            let renamed = weight.rename(files);
            renamed.map_err(|e| e.in_file(files.path()))?;
            config.describe(&weight.name, weight.activation);
        }
        settings.iter().for_each(|name| files.remove(name));
        metadata.iter().for_each(|key| files.forget(key));
    }
    Ok(())
}
