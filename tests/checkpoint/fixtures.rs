//! Folders that other libraries wrote, in `assets/reference`, and the raw tensors of files.

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::kit::*;

pub fn fixture(name: &str) -> PathBuf {
    repository().join("assets/reference").join(name)
}

/// What the library of a fixture computed.
pub fn expected(folder: &Path) -> Result<HashMap<String, Tensor>> {
    let path = folder.join("expected.safetensors");
    Ok(candle_core::safetensors::load(path, &Device::Cpu)?)
}

/// The largest difference relative to the largest element.
pub fn difference(got: &Tensor, expected: &Tensor) -> Result<f32> {
    let max = |t: &Tensor| t.abs()?.max_all()?.to_dtype(DType::F32)?.to_scalar::<f32>();
    Ok(max(&(got - expected)?)? / max(expected)?)
}

/// The names of Linears, their inputs, outputs and whether they have a bias.
pub type Sizes = &'static [(&'static str, usize, usize, bool)];

/// The model of assets/reference/layouts.py: a ReLU behind the first Linear.
#[derive(Quantizable)]
pub struct Mlp(pub Vec<nn::Linear>);

impl Mlp {
    pub fn open(path: &Path, sizes: Sizes) -> Result<Self> {
        let vb = open(path)?;
        let linears = sizes.iter().map(|(name, inputs, outputs, bias)| {
            nn::linear_b(*inputs, *outputs, *bias, vb.pp(name))
        });
        Ok(Self(linears.collect::<candle_core::Result<_>>()?))
    }

    pub fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let first = self.0[0].forward(xs)?.relu()?;
        Ok(self.0[1..].iter().try_fold(first, |xs, linear| linear.forward(&xs))?)
    }
}

/// The groups of a layer's weight, if it has some.
pub fn groups_of(layer: &nn::Linear) -> Option<GroupConfig> {
    layer.projection().qweight().and_then(QWeight::groups)
}

/// Dtype, shape and bytes.
pub type Entry = (safetensors::Dtype, Vec<usize>, Vec<u8>);

/// The tensors of a file, by name.
pub type Raw = HashMap<String, Entry>;

pub fn raw(path: &Path) -> Result<Raw> {
    let bytes = fs::read(path)?;
    let file = SafeTensors::deserialize(&bytes)?;
    let tensors = file.iter().map(|(name, view)| {
        let entry = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        (name.to_owned(), entry)
    });
    Ok(tensors.collect())
}

pub fn write_raw(
    tensors: &Raw,
    metadata: Option<HashMap<String, String>>,
    path: &Path,
) -> Result<()> {
    let views = tensors.iter().map(|(name, (dtype, shape, bytes))| {
        Ok((name, TensorView::new(*dtype, shape.clone(), bytes)?))
    });
    let views = views.collect::<Result<Vec<_>>>()?;
    Ok(safetensors::serialize_to_file(views, metadata, path)?)
}

/// Replaces a tensor, or removes it.
pub fn replace(tensors: &mut Raw, name: &str, to: Option<Entry>) {
    match to {
        Some(to) => tensors.insert(name.into(), to),
        None => tensors.remove(name),
    };
}

pub fn zeros(dtype: safetensors::Dtype, shape: &[usize]) -> Entry {
    let bytes = shape.iter().product::<usize>() * dtype.bitsize() / 8;
    (dtype, shape.to_vec(), vec![0; bytes])
}
