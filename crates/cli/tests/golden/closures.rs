// Closures that capture layers, in the forms of candle-transformers and in others.
use candle::{Result, Tensor};
use candle_nn::{batch_norm, conv2d, linear, Conv2d, Func, FuncT, VarBuilder};

fn conv(vb: VarBuilder) -> Result<Conv2d> {
    conv2d(64, 64, 3, Default::default(), vb)
}

fn block(scale: f64, vb: VarBuilder) -> Result<Func<'static>> {
    let first = conv(vb.pp("first"))?;
    let norm = batch_norm(64, 1e-5, vb.pp("norm"))?;
    let (second, third) = if scale > 1. {
        (conv(vb.pp("second"))?, conv(vb.pp("third"))?)
    } else {
        (conv(vb.pp("2"))?, conv(vb.pp("3"))?)
    };
    Ok(Func::new(move |xs| {
        let ys = xs.apply(&first)?.apply_t(&norm, false)?.apply(&second)?;
        third.forward(&(ys * scale)?)
    }))
}

fn model(head: Option<usize>, vb: VarBuilder) -> Result<FuncT<'_>> {
    let mut blocks = Vec::new();
    for i in 0..4 {
        blocks.push(block(1., vb.pp(i))?);
    }
    let more = (4..6).map(|i| conv(vb.pp(i))).collect::<Result<Vec<_>>>()?;
    let head = match head {
        None => None,
        Some(size) => Some(linear(64, size, vb.pp("head"))?),
    };
    Ok(FuncT::new(move |xs, train| {
        let mut xs = xs.clone();
        for block in blocks.iter() {
            xs = xs.apply(block)?;
        }
        for conv in &more {
            xs = xs.apply(conv)?;
        }
        match &head {
            Some(head) if !train => xs.flatten_from(1)?.apply(head),
            _ => Ok(xs),
        }
    }))
}

fn left(vb: VarBuilder) -> Result<[Func<'static>; 3]> {
    let optional = conv(vb.pp("optional"));
    let printed = conv(vb.pp("printed"))?;
    let kept = conv(vb.pp("kept"))?;
    Ok([
        Func::new(move |xs| match &optional {
            Ok(conv) => xs.apply(conv),
            Err(_) => Ok(xs.clone()),
        }),
        Func::new(move |xs| {
            println!("{:?}", printed);
            xs.apply(&printed)
        }),
        // dynquant: keep
        Func::new(move |xs| xs.apply(&kept)),
    ])
}
