//! Expressions from elsewhere: no deeper than the stack of whoever reads them allows.

use std::cell::Cell;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::{Expr, MAX_DEPTH};

thread_local! {
    /// Expressions that are being read around the next one.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

/// One more expression around the next one, until it is dropped.
struct Around;

impl Around {
    fn begin() -> Option<Around> {
        let depth = DEPTH.get();
        (depth < MAX_DEPTH).then(|| {
            DEPTH.set(depth + 1);
            Around
        })
    }
}

impl Drop for Around {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl Serialize for Expr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // The derived one, which is no method of the trait.
        Expr::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Expr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Expr, D::Error> {
        let _around =
            Around::begin().ok_or_else(|| D::Error::custom("an expression is nested too deeply"))?;
        Expr::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{types::Type, value::Value};

    #[test]
    fn nesting_without_end_is_refused() {
        let literal = Expr::Literal { value: Value::Bool(true), ty: Type::Bool };
        let not = |expr: Expr| Expr::Not(Box::new(expr));
        let innermost = postcard::to_stdvec(&literal).expect("it can be serialised");
        let negated = postcard::to_stdvec(&not(literal.clone())).expect("it can be serialised");
        let around = negated.strip_suffix(&innermost[..]).expect("what is negated comes last");
        let nested = |levels: usize| [&around.repeat(levels)[..], &innermost].concat();
        // In a thread with as little stack as any that reads expressions.
        for _ in 0..2 {
            assert!(postcard::from_bytes::<Expr>(&nested(1_000_000)).is_err());
            assert!(postcard::from_bytes::<Expr>(&nested(MAX_DEPTH)).is_err());
            let deepest = (1..MAX_DEPTH).fold(literal.clone(), |expr, _| not(expr));
            assert_eq!(postcard::from_bytes::<Expr>(&nested(MAX_DEPTH - 1)), Ok(deepest));
        }
        assert_eq!(DEPTH.get(), 0);
    }
}
