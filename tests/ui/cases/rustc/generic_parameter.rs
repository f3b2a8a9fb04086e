use std::marker::PhantomData;

use candle_dynquant::Quantizable;

/// No module tree.
struct Marker;

#[derive(Quantizable)]
struct Model<T, U, V> {
    body: Vec<T>,
    #[quantizable(skip)]
    skipped: Option<U>,
    phantom: PhantomData<V>,
}

fn takes(_: &impl Quantizable) {}

fn main() {
    takes(&Model::<(), Marker, Marker> { body: vec![], skipped: None, phantom: PhantomData });
    takes(&Model::<Marker, (), ()> { body: vec![], skipped: None, phantom: PhantomData });
}
