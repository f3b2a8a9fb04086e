//! The conversion of pixels to a model's input, as by transformers' image processors on torchvision.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Map, Value};

use super::picture::{MAX_PIXELS, Pixels};
use super::resize::{Filter, resize};
use crate::files::{PROCESSORS, optional_text, text};
use crate::keys::{Keys, parse};
use crate::tables;

/// The steps of `preprocessor_config.json`.
#[derive(Debug)]
pub(super) struct Processor {
    size: Size,
    filter: Filter,
    /// The height and width cut out of the middle.
    crop: Option<[usize; 2]>,
    /// The numbers that are subtracted from the values of a channel, and then divide them.
    scale: [(f32, f32); 3],
}

#[derive(Clone, Copy, Debug)]
enum Size {
    ShortestEdge(usize),
    /// Height and width.
    Exact([usize; 2]),
}

/// The file in which newer releases nest the keys.
const PROCESSOR: &str = PROCESSORS[0];
const PREPROCESSOR: &str = PROCESSORS[1];

const CLIP: &str = r#"{"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": true,
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}"#;
const SIGLIP: &str = r#"{"size": {"height": 224, "width": 224}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}"#;

/// The classes of processors, without the endings `Fast` and `Pil`, and their defaults.
const CLASSES: [(&str, &str); 5] = [
    ("CLIPImageProcessor", CLIP),
    ("CLIPFeatureExtractor", CLIP),
    ("BitImageProcessor", CLIP),
    ("SiglipImageProcessor", SIGLIP),
    ("SiglipFeatureExtractor", SIGLIP),
];

impl Processor {
    /// Reads the steps of a folder, whose model has a class of processors.
    pub fn read(dir: &Path, class: &str) -> Result<Self> {
        let path = dir.join(PROCESSOR);
        let nested: Map<String, Value> = match optional_text(&path)? {
            Some(text) => parse(&path.display().to_string(), &text, "a processor")?,
            None => Map::new(),
        };
        if let Some(Value::Object(map)) = nested.get("image_processor") {
            let path = format!("{}: image_processor", path.display());
            return Self::parse(&path, map.clone(), class);
        }
        let path = dir.join(PREPROCESSOR);
        let text = text(&path)?;
        let path = path.display().to_string();
        Self::parse(&path, parse(&path, &text, "an image processor")?, class)
    }

    fn parse(path: &str, map: Map<String, Value>, class: &str) -> Result<Self> {
        let given = Keys::new(path, map.clone());
        let mut key = "image_processor_type";
        if given.get(key).is_none() && given.get("feature_extractor_type").is_some() {
            key = "feature_extractor_type";
        }
        let name = given.word(key)?.unwrap_or_else(|| class.to_owned());
        let plain = name.trim_end_matches("Fast").trim_end_matches("Pil");
        let known = CLASSES.iter().find(|(class, _)| *class == plain);
        let (_, defaults) = known.ok_or_else(|| {
            let names = CLASSES.map(|(class, _)| class).join(", ");
            given.fault(key, &format!("one of {names}"))
        })?;
        let mut all: Map<String, Value> = serde_json::from_str(defaults)?;
        all.extend(map.into_iter().filter(|(_, value)| !value.is_null()));
        let keys = Keys::flat(path, all, &tables::PROCESSOR)?;
        let is_cut = keys.flag("do_center_crop", false)?;
        let crop = is_cut.then(|| size(&keys, "crop_size")).transpose()?;
        let filter = match keys.number("resample")? {
            None | Some(3) => Filter::Bicubic,
            Some(2) => Filter::Bilinear,
            Some(_) => return Err(keys.fault("resample", "2 (bilinear) or 3 (bicubic)")),
        };
        Ok(Self {
            size: size(&keys, "size")?,
            filter,
            crop: crop.map(|crop| match crop {
                Size::Exact(size) => size,
                Size::ShortestEdge(side) => [side; 2],
            }),
            scale: scale(&keys)?,
        })
    }

    /// The height and width of the model's input.
    pub fn outputs(&self) -> Result<[usize; 2]> {
        match (self.crop, self.size) {
            (Some(size), _) | (None, Size::Exact(size)) => Ok(size),
            _ => anyhow::bail!(
                "{PREPROCESSOR}: key \"do_center_crop\": expected true, or a size of height and \
                 width, so that all pictures have one size"
            ),
        }
    }

    /// The model's input, `[3, height, width]`.
    pub fn process(&self, mut picture: Pixels) -> Result<Vec<f32>> {
        let from = [picture.height, picture.width];
        let to = self.size.resized(from);
        let [height, width] = to;
        let fits = |rows| width.checked_mul(rows).is_some_and(|it| it <= MAX_PIXELS);
        ensure!(
            fits(from[0]) && fits(height),
            "expected a picture of at most {MAX_PIXELS} pixels when it is resized, got {width} x \
             {height}"
        );
        picture = Pixels { values: resize(self.filter, &picture.values, from, to), height, width };
        let [height, width] = self.crop.unwrap_or([picture.height, picture.width]);
        let [top, left] = [(picture.height, height), (picture.width, width)].map(start);
        let mut input = Vec::with_capacity(3 * height * width);
        for (channel, (mean, std)) in self.scale.into_iter().enumerate() {
            for row in (0..height as i64).map(|row| row + top) {
                for column in (0..width as i64).map(|column| column + left) {
                    let value = picture.value(row, column, channel);
                    input.push((f32::from(value) - mean) / std);
                }
            }
        }
        Ok(input)
    }
}

impl Pixels {
    /// A value; 0 outside of the picture.
    fn value(&self, row: i64, column: i64, channel: usize) -> u8 {
        let inside = |place: i64, size: usize| usize::try_from(place).ok().filter(|it| *it < size);
        match (inside(row, self.height), inside(column, self.width)) {
            (Some(row), Some(column)) => self.values[(row * self.width + column) * 3 + channel],
            _ => 0,
        }
    }
}

/// The first of the middle `part` values of `whole`; torchvision's padding of a smaller picture is
/// shorter in front.
fn start((whole, part): (usize, usize)) -> i64 {
    if whole < part { -(((part - whole) / 2) as i64) } else { ((whole - part) / 2) as i64 }
}

impl Size {
    /// The height and width of a picture of a height and width.
    fn resized(self, [height, width]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Exact(size) => size,
            Self::ShortestEdge(short) if width <= height => {
                [(short as f64 * height as f64 / width as f64) as usize, short]
            }
            Self::ShortestEdge(short) => {
                [short, (short as f64 * width as f64 / height as f64) as usize]
            }
        }
    }
}

/// A size of height and width, or of the shortest edge, which is also a number by itself.
fn size(keys: &Keys, key: &str) -> Result<Size> {
    const MOST: usize = 4096;
    let part = |name: &str| keys.number(&format!("{key}.{name}"));
    let alone = keys.number(key)?.or(part("shortest_edge")?);
    let size = match (alone, part("height")?, part("width")?) {
        (Some(side), ..) if side <= MOST => Size::ShortestEdge(side),
        (None, Some(height), Some(width)) if height.max(width) <= MOST => {
            Size::Exact([height, width])
        }
        _ => {
            let expected = format!("shortest_edge, or height and width, at most {MOST}");
            return Err(keys.fault(key, &expected));
        }
    };
    Ok(size)
}

/// Rescaling and normalization in one, in f32 as torch fuses them.
fn scale(keys: &Keys) -> Result<[(f32, f32); 3]> {
    let inverse = 1. / keys.positive("rescale_factor")?.unwrap_or(1. / 255.);
    let three = |key: &str| {
        let numbers: Option<[f32; 3]> = keys.optional(key, "three numbers")?;
        numbers.ok_or_else(|| keys.fault(key, "three numbers"))
    };
    let (mean, std) = (three("image_mean")?, three("image_std")?);
    if std.iter().any(|std| *std <= 0.) {
        return Err(keys.fault("image_std", "three numbers above 0"));
    }
    let inverse = inverse as f32;
    Ok(std::array::from_fn(|i| (mean[i] * inverse, std[i] * inverse)))
}
