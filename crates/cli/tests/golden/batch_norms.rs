//! Batch norms: which are folded into the convolution before them, and which stay.
use candle::{Module, ModuleT, Result};
use candle_nn::{batch_norm, conv1d, conv2d_no_bias, Conv2d, Func, VarBuilder};

fn conv2d(vb: VarBuilder) -> Result<Conv2d> {
    conv2d_no_bias(64, 64, 3, Default::default(), vb)
}

fn block(vb: VarBuilder) -> Result<Func> {
    let conv1 = conv2d(vb.pp("conv1"))?;
    let bn1 = batch_norm(64, 1e-5, vb.pp("bn1"))?;
    let bn2 = batch_norm(64, 1e-5, vb.pp("bn2"))?;
    let conv2 = conv1d(64, 64, 3, Default::default(), vb.pp("conv2"))?;
    Ok(Func::new(move |xs| {
        let xs = xs
            .apply(&conv1)?
            .apply_t(&bn1, false)?
            .relu()?;
        bn2.forward_t(&conv2.forward(&xs)?, false)
    }))
}

/// Norms that stay: in training, behind something else, shared, from elsewhere, and kept.
fn stay(train: bool, given: Conv2d, vb: VarBuilder) -> Result<Func> {
    let conv1 = conv2d(vb.pp("conv1"))?;
    let conv2 = conv2d(vb.pp("conv2"))?;
    let conv3 = conv2d(vb.pp("conv3"))?;
    let conv4 = conv2d(vb.pp("conv4"))?;
    println!("{:?}", conv4.weight());
    let conv5 = conv2d(vb.pp("conv5"))?;
    let bn1 = batch_norm(64, 1e-5, vb.pp("bn1"))?;
    let bn2 = batch_norm(64, 1e-5, vb.pp("bn2"))?;
    let bn3 = batch_norm(64, 1e-5, vb.pp("bn3"))?;
    let bn4 = batch_norm(64, 1e-5, vb.pp("bn4"))?;
    let bn5 = batch_norm(64, 1e-5, vb.pp("bn5"))?;
    let bn6 = batch_norm(64, 1e-5, vb.pp("bn6"))?;
    Ok(Func::new(move |xs| {
        let xs = xs.apply(&conv1)?.apply_t(&bn1, train)?;
        let xs = xs.apply(&conv2)?.relu()?.apply_t(&bn2, false)?;
        let xs = xs.apply(&conv3)?.apply_t(&bn3, false)?.apply_t(&bn3, false)?;
        let xs = xs.apply(&conv4)?.apply_t(&bn4, false)?;
        let xs = xs.apply(&given)?.apply_t(&bn5, false)?;
        xs.apply(&conv5)?.apply_t(&bn6, false) // dynquant: keep
    }))
}
