//! Cells and locks are walked; what is shared has to be `Clone`, which a lock is not.
use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::sync::{Arc, LazyLock, Mutex, OnceLock, RwLock};

use candle::Tensor;
use candle_dynquant::nn::Linear;
use candle_dynquant::Quantizable;

#[derive(Clone, Quantizable)]
pub struct Inner {
    layer: Linear,
}

#[derive(Clone, Quantizable)]
pub struct Counted {
    layer: Linear,
}

#[derive(Clone, Quantizable)]
pub struct Listed {
    layer: Linear,
}

#[derive(Quantizable)]
pub struct Walked {
    a: RwLock<Inner>,
    b: Mutex<Linear>,
    c: RefCell<Option<Linear>>,
    d: OnceCell<Linear>,
    e: OnceLock<Linear>,
    f: Rc<RefCell<Counted>>,
    g: Vec<Arc<Listed>>,
    h: (Rc<Linear>, usize),
    cache: Arc<Mutex<HashMap<usize, Tensor>>>,
}

#[derive(Quantizable)]
pub struct Guarded {
    layer: Linear,
    count: Option<Mutex<usize>>,
}

#[derive(Quantizable)]
pub struct Hidden {
    a: Arc<RwLock<Linear>>,
    b: Option<Arc<Mutex<Inner>>>,
    c: Rc<Vec<Mutex<Linear>>>,
    d: Weak<Linear>,
    e: Vec<Cell<Linear>>,
    f: LazyLock<Linear>,
    g: Box<Arc<Option<RwLock<Linear>>>>,
    h: Arc<(Linear, Mutex<usize>)>,
    i: Arc<Guarded>,
}
// left: line 40: `RwLock` in an `Arc` hides the layers in it
// left: line 41: `Mutex` in an `Arc` hides the layers in it
// left: line 42: `Mutex` in an `Rc` hides the layers in it
// left: line 43: `Weak` hides the layers in it
// left: line 44: `Cell` hides the layers in it
// left: line 45: `LazyLock` hides the layers in it
// left: line 46: `RwLock` in an `Arc` hides the layers in it
// left: line 47: `Mutex` in an `Arc` hides the layers in it
// left: line 48: an `Arc` is walked where its content is `Clone`, and `Guarded` is not
