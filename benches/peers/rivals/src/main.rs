//! Rivals in Rust, each in its best form: candle-transformers' BERT and Llama, rten-gemm's int8
//! product, and candle's product with gemm's AVX-512 kernels (the feature `x86-v4`).

mod decoder;
mod gguf;
#[path = "../../protocol.rs"]
mod protocol;

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use candle_core::{DType, Device, Module, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
#[cfg(not(system_allocator))]
use mimalloc::MiMalloc;
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions, QuantParams};
use rten_tensor::NdTensor;
use rten_tensor::prelude::*;
use serde_json::Value;

use protocol::{Case, Process, Tensors, contender, take, text};

const X86_V4: bool = cfg!(feature = "x86-v4");

/// The allocator of `ours`.
#[cfg(not(system_allocator))]
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> Result<()> {
    protocol::serve(Rivals::default())
}

#[derive(Default)]
struct Rivals {
    /// The folder that was read last, and its model.
    bert: Option<(String, Arc<BertModel>)>,
    /// The files that were read last, and their models.
    decoders: Option<(Value, decoder::Models)>,
}

impl Process for Rivals {
    fn load(&mut self, case: &Value, tensors: Tensors) -> Result<Case> {
        match text(case, "group")? {
            "linear" if X86_V4 => linear(tensors),
            "linear" => product(tensors),
            "bert" => self.bert(text(case, "folder")?, tensors),
            // It spends little time in float products.
            "decoder" if !X86_V4 => self.decoder(case, tensors),
            _ => Ok(Case::default()),
        }
    }
}

impl Rivals {
    fn decoder(&mut self, case: &Value, tensors: Tensors) -> Result<Case> {
        let files = &case["files"];
        self.decoders.take_if(|(read, _)| read != files);
        let (_, models) = match &mut self.decoders {
            Some(read) => read,
            none => none.insert((files.clone(), decoder::models(case)?)),
        };
        decoder::decoder(case, models, tensors)
    }

    fn bert(&mut self, folder: &str, mut tensors: Tensors) -> Result<Case> {
        if self.bert.as_ref().is_none_or(|(path, _)| path != folder) {
            let path = Path::new(folder);
            let config: Config =
                serde_json::from_str(&std::fs::read_to_string(path.join("config.json"))?)?;
            let weights =
                candle_core::safetensors::load(path.join("model.safetensors"), &Device::Cpu)?;
            let vb = VarBuilder::from_tensors(weights, DType::F32, &Device::Cpu);
            self.bert = Some((folder.to_owned(), Arc::new(BertModel::load(vb, &config)?)));
        }
        let (_, model) = self.bert.as_ref().expect("was just read");
        let (model, ids) = (model.clone(), take(&mut tensors, "ids")?);
        let types = ids.zeros_like()?;
        let name = ["candle f32", "candle f32 x86-v4"][usize::from(X86_V4)];
        let call = contender(move || Ok(model.forward(&ids, &types, None)?));
        Ok(Case { contenders: vec![(name, call)], outputs: vec![] })
    }
}

fn linear(mut tensors: Tensors) -> Result<Case> {
    let xs = take(&mut tensors, "xs")?;
    let weight = take(&mut tensors, "weight")?;
    let candle = candle_nn::Linear::new(weight, tensors.remove("bias"));
    let call = contender(move || Ok(candle.forward(&xs)?));
    Ok(Case { contenders: vec![("candle f32 x86-v4", call)], outputs: vec![] })
}

/// A product u8 x i8 -> i32: a call neither quantizes nor dequantizes, so it does less than a
/// layer.
fn product(mut tensors: Tensors) -> Result<Case> {
    let (xs, weight) = (take(&mut tensors, "xs")?, take(&mut tensors, "weight")?);
    let (m, k) = xs.dims2()?;
    let n = weight.dim(0)?;
    // Every call creates a new executor, which costs nothing: it cannot be sent to another thread.
    let gemm = GemmExecutor::<u8, i8, i32>::new;
    let (lhs, lhs_scale) = codes(&xs, 127)?;
    let (rhs, rhs_scale) = codes(&weight.t()?, if gemm().may_saturate() { 63 } else { 127 })?;
    // Activations are unsigned, around 128.
    let lhs: Vec<u8> = lhs.into_iter().map(|code| (code as i32 + 128) as u8).collect();
    let lhs = NdTensor::from_data([m, k], lhs);
    let rhs =
        NdTensor::from_data([k, n], rhs.into_iter().map(|code| code as i8).collect::<Vec<_>>());
    // A single row takes its matrix-vector kernel, which reads the weights unpacked.
    let packed = (m > 1).then(|| gemm().prepack_b(rhs.view()));
    let zero_points = vec![128u8; m];
    let call = move || -> Result<Vec<i32>> {
        let mut out = vec![0i32; m * n];
        let rhs = match &packed {
            Some(packed) => GemmInputB::Packed(packed),
            None => GemmInputB::Unpacked(rhs.view()),
        };
        let options = GemmOptions {
            a_quant: Some(QuantParams { zero_point: &zero_points }),
            ..Default::default()
        };
        gemm()
            .gemm(&mut out, GemmInputA::Unpacked(lhs.view()), rhs, options)
            .map_err(|error| anyhow::anyhow!("rten-gemm: {error}"))?;
        Ok(out)
    };
    let product = Tensor::from_vec(call()?, (m, n), &Device::Cpu)?.to_dtype(DType::F32)?;
    let mut output = (product * (lhs_scale * rhs_scale))?;
    if let Some(bias) = tensors.remove("bias") {
        output = output.broadcast_add(&bias)?;
    }
    // The sums are left as they are: a tensor of them would cost a copy.
    let none = Tensor::zeros(0, DType::F32, &Device::Cpu)?;
    let call = contender(move || {
        std::hint::black_box(call()?);
        Ok(none.clone())
    });
    Ok(Case { contenders: vec![("rten-gemm", call)], outputs: vec![("rten-gemm", output)] })
}

/// Codes from `-most` to `most`, and their scale.
fn codes(xs: &Tensor, most: u8) -> Result<(Vec<f32>, f64)> {
    let largest = xs.abs()?.max_all()?.to_scalar::<f32>()?;
    let scale = f64::from(largest) / f64::from(most);
    let codes = (xs / scale)?.round()?.contiguous()?;
    Ok((codes.flatten_all()?.to_vec1()?, scale))
}
