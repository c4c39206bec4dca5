//! The catalogue of scalar functions and operators.
//!
//! A [`Function`] is one meaning; its signatures say for which types it exists. The evaluator tells the types of
//! arguments from the values, so that one function serves all its signatures.

use serde::{Deserialize, Serialize};

use crate::types::Type;

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A scalar function or operator.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Function { $($(#[$doc])* $name,)* }
    };
}

functions! {
    /// `||` of two strings or two byte strings
    Concat,
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`, `mod`
    Modulo,
    /// `^`, `power`, `pow`
    Power,
    /// unary `-`
    Negate,
    /// unary `+`
    Identity,
    /// `&`
    BitAnd,
    /// `|`
    BitOr,
    /// `#`
    BitXor,
    /// `~`
    BitNot,
    /// `<<`
    ShiftLeft,
    /// `>>`
    ShiftRight,
    /// `~`
    RegexMatch,
    /// `~*`
    RegexMatchInsensitive,
    /// `!~`
    RegexNotMatch,
    /// `!~*`
    RegexNotMatchInsensitive,
    /// `abs`, `@`
    Abs,
    /// `round`
    Round,
    /// `trunc`
    Truncate,
    /// `ceil`, `ceiling`
    Ceil,
    /// `floor`
    Floor,
    /// `sign`
    Sign,
    /// `sqrt`
    SquareRoot,
    /// `cbrt`
    CubeRoot,
    /// `exp`
    Exp,
    /// `ln`
    Ln,
    /// `log`, `log10`
    Log,
    /// `div`
    IntegerDivide,
    /// `pi`
    Pi,
    /// `degrees`
    Degrees,
    /// `radians`
    Radians,
    /// `greatest`
    Greatest,
    /// `least`
    Least,
    /// `nullif`
    NullIf,
    /// `length`, `char_length`, `character_length`: characters of a string, bytes of a byte string
    Length,
    /// `octet_length`
    OctetLength,
    /// `bit_length`
    BitLength,
    /// `lower`
    Lower,
    /// `upper`
    Upper,
    /// `initcap`
    InitCap,
    /// `btrim`, `trim`
    Trim,
    /// `ltrim`
    TrimLeft,
    /// `rtrim`
    TrimRight,
    /// `substring`, `substr` by position
    Substring,
    /// `substring(string from pattern)`
    SubstringRegex,
    /// `regexp_replace`
    RegexReplace,
    /// `left`
    Left,
    /// `right`
    Right,
    /// `lpad`
    PadLeft,
    /// `rpad`
    PadRight,
    /// `repeat`
    Repeat,
    /// `replace`
    Replace,
    /// `reverse`
    Reverse,
    /// `strpos`, `position` (string first)
    Position,
    /// `split_part`
    SplitPart,
    /// `starts_with`, `^@`
    StartsWith,
    /// `concat`: NULLs are left out
    ConcatAll,
    /// `concat_ws`
    ConcatSeparated,
    /// `ascii`
    Ascii,
    /// `chr`
    Chr,
    /// `md5`
    Md5,
    /// `to_hex`
    ToHex,
    /// `translate`
    Translate,
    /// `encode`
    Encode,
    /// `decode`
    Decode,
    /// `date_trunc`
    DateTrunc,
    /// `date_part`: as `extract`, in double precision
    DatePart,
    /// `extract`
    Extract,
    /// `age` of two timestamps
    Age,
    /// `timezone(zone, timestamp)`: `AT TIME ZONE`
    AtTimeZone,
    /// `make_date`
    MakeDate,
    /// `to_timestamp` of seconds since 1970
    ToTimestamp,
    /// `justify_hours`
    JustifyHours,
}

/// How much the result may change between calls with the same arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Volatility {
    /// Never.
    Immutable,
    /// Not within a statement: it depends on the session's settings.
    Stable,
}

/// One signature of a function.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// SQL name or operator symbol.
    pub name: &'static str,
    /// Argument types, without modifiers.
    pub args: &'static [Type],
    /// Result type.
    pub returns: &'static Type,
    /// Meaning.
    pub function: Function,
}

impl Signature {
    /// How much the result may change between calls with the same arguments.
    pub fn volatility(&self) -> Volatility {
        let zoned = self.args.contains(&Type::TimestampTz) || *self.returns == Type::TimestampTz;
        if zoned { Volatility::Stable } else { Volatility::Immutable }
    }
}

macro_rules! signatures {
    ($($name:literal $function:ident : $(($($arg:ident),*) -> $returns:ident),+ ;)*) => {
        &[$($(Signature {
            name: $name,
            args: &[$(short::$arg),*],
            returns: &short::$returns,
            function: Function::$function,
        },)+)*]
    };
}

/// Types under names that fit a table.
#[allow(non_upper_case_globals)]
mod short {
    use crate::types::Type;
    pub const bool: Type = Type::Bool;
    pub const i2: Type = Type::Int2;
    pub const i4: Type = Type::Int4;
    pub const i8: Type = Type::Int8;
    pub const f4: Type = Type::Float4;
    pub const f8: Type = Type::Float8;
    pub const num: Type = Type::Numeric(None);
    pub const text: Type = Type::Text;
    pub const bytea: Type = Type::Bytea;
    pub const date: Type = Type::Date;
    pub const time: Type = Type::Time;
    pub const ts: Type = Type::Timestamp;
    pub const tz: Type = Type::TimestampTz;
    pub const iv: Type = Type::Interval;
}

/// Every signature. `concat`, `concat_ws`, `greatest`, `least` and `nullif` take arguments of any type and are resolved
/// by [`super::resolve()`].
pub static SIGNATURES: &[Signature] = signatures! {
    "+" Add: (i2, i2) -> i2, (i4, i4) -> i4, (i8, i8) -> i8, (f4, f4) -> f4, (f8, f8) -> f8, (f4, f8) -> f8,
        (f8, f4) -> f8, (num, num) -> num, (date, i4) -> date, (i4, date) -> date, (date, iv) -> ts, (iv, date) -> ts,
        (date, time) -> ts, (time, date) -> ts, (ts, iv) -> ts, (iv, ts) -> ts, (tz, iv) -> tz, (iv, tz) -> tz,
        (time, iv) -> time, (iv, time) -> time, (iv, iv) -> iv;
    "-" Subtract: (i2, i2) -> i2, (i4, i4) -> i4, (i8, i8) -> i8, (f4, f4) -> f4, (f8, f8) -> f8, (f4, f8) -> f8,
        (f8, f4) -> f8, (num, num) -> num, (date, i4) -> date, (date, date) -> i4, (date, iv) -> ts, (ts, iv) -> ts,
        (tz, iv) -> tz, (ts, ts) -> iv, (tz, tz) -> iv, (time, iv) -> time, (time, time) -> iv, (iv, iv) -> iv;
    "*" Multiply: (i2, i2) -> i2, (i4, i4) -> i4, (i8, i8) -> i8, (f4, f4) -> f4, (f8, f8) -> f8, (f4, f8) -> f8,
        (f8, f4) -> f8, (num, num) -> num, (iv, f8) -> iv, (f8, iv) -> iv;
    "/" Divide: (i2, i2) -> i2, (i4, i4) -> i4, (i8, i8) -> i8, (f4, f4) -> f4, (f8, f8) -> f8, (f4, f8) -> f8,
        (f8, f4) -> f8, (num, num) -> num, (iv, f8) -> iv;
    "%" Modulo: (i2, i2) -> i2, (i4, i4) -> i4, (i8, i8) -> i8, (num, num) -> num;
    "mod" Modulo: (i2, i2) -> i2, (i4, i4) -> i4, (i8, i8) -> i8, (num, num) -> num;
    "^" Power: (f8, f8) -> f8, (num, num) -> num;
    "power" Power: (f8, f8) -> f8, (num, num) -> num;
    "pow" Power: (f8, f8) -> f8, (num, num) -> num;
    "-" Negate: (i2) -> i2, (i4) -> i4, (i8) -> i8, (f4) -> f4, (f8) -> f8, (num) -> num, (iv) -> iv;
    "+" Identity: (i2) -> i2, (i4) -> i4, (i8) -> i8, (f4) -> f4, (f8) -> f8, (num) -> num;
    "&" BitAnd: (i2, i2) -> i2, (i4, i4) -> i4, (i8, i8) -> i8;
    "|" BitOr: (i2, i2) -> i2, (i4, i4) -> i4, (i8, i8) -> i8;
    "#" BitXor: (i2, i2) -> i2, (i4, i4) -> i4, (i8, i8) -> i8;
    "~" BitNot: (i2) -> i2, (i4) -> i4, (i8) -> i8;
    "<<" ShiftLeft: (i2, i4) -> i2, (i4, i4) -> i4, (i8, i4) -> i8;
    ">>" ShiftRight: (i2, i4) -> i2, (i4, i4) -> i4, (i8, i4) -> i8;
    "||" Concat: (text, text) -> text, (bytea, bytea) -> bytea;
    "~" RegexMatch: (text, text) -> bool;
    "~*" RegexMatchInsensitive: (text, text) -> bool;
    "!~" RegexNotMatch: (text, text) -> bool;
    "!~*" RegexNotMatchInsensitive: (text, text) -> bool;
    "abs" Abs: (i2) -> i2, (i4) -> i4, (i8) -> i8, (f4) -> f4, (f8) -> f8, (num) -> num;
    "@" Abs: (i2) -> i2, (i4) -> i4, (i8) -> i8, (f4) -> f4, (f8) -> f8, (num) -> num;
    "round" Round: (f8) -> f8, (num) -> num, (num, i4) -> num;
    "trunc" Truncate: (f8) -> f8, (num) -> num, (num, i4) -> num;
    "ceil" Ceil: (f8) -> f8, (num) -> num;
    "ceiling" Ceil: (f8) -> f8, (num) -> num;
    "floor" Floor: (f8) -> f8, (num) -> num;
    "sign" Sign: (f8) -> f8, (num) -> num;
    "sqrt" SquareRoot: (f8) -> f8, (num) -> num;
    "cbrt" CubeRoot: (f8) -> f8;
    "exp" Exp: (f8) -> f8, (num) -> num;
    "ln" Ln: (f8) -> f8, (num) -> num;
    "log" Log: (f8) -> f8, (num) -> num, (num, num) -> num;
    "log10" Log: (f8) -> f8, (num) -> num;
    "div" IntegerDivide: (num, num) -> num;
    "pi" Pi: () -> f8;
    "degrees" Degrees: (f8) -> f8;
    "radians" Radians: (f8) -> f8;
    "length" Length: (text) -> i4, (bytea) -> i4;
    "char_length" Length: (text) -> i4;
    "character_length" Length: (text) -> i4;
    "octet_length" OctetLength: (text) -> i4, (bytea) -> i4;
    "bit_length" BitLength: (text) -> i4, (bytea) -> i4;
    "lower" Lower: (text) -> text;
    "upper" Upper: (text) -> text;
    "initcap" InitCap: (text) -> text;
    "btrim" Trim: (text) -> text, (text, text) -> text;
    "trim" Trim: (text) -> text, (text, text) -> text;
    "ltrim" TrimLeft: (text) -> text, (text, text) -> text;
    "rtrim" TrimRight: (text) -> text, (text, text) -> text;
    "substring" Substring: (text, i4) -> text, (text, i4, i4) -> text, (bytea, i4) -> bytea, (bytea, i4, i4) -> bytea;
    "substr" Substring: (text, i4) -> text, (text, i4, i4) -> text, (bytea, i4) -> bytea, (bytea, i4, i4) -> bytea;
    "substring" SubstringRegex: (text, text) -> text;
    "regexp_replace" RegexReplace: (text, text, text) -> text, (text, text, text, text) -> text;
    "left" Left: (text, i4) -> text;
    "right" Right: (text, i4) -> text;
    "lpad" PadLeft: (text, i4) -> text, (text, i4, text) -> text;
    "rpad" PadRight: (text, i4) -> text, (text, i4, text) -> text;
    "repeat" Repeat: (text, i4) -> text;
    "replace" Replace: (text, text, text) -> text;
    "reverse" Reverse: (text) -> text;
    "strpos" Position: (text, text) -> i4;
    "position" Position: (text, text) -> i4;
    "split_part" SplitPart: (text, text, i4) -> text;
    "starts_with" StartsWith: (text, text) -> bool;
    "^@" StartsWith: (text, text) -> bool;
    "ascii" Ascii: (text) -> i4;
    "chr" Chr: (i4) -> text;
    "md5" Md5: (text) -> text, (bytea) -> text;
    "to_hex" ToHex: (i4) -> text, (i8) -> text;
    "translate" Translate: (text, text, text) -> text;
    "encode" Encode: (bytea, text) -> text;
    "decode" Decode: (text, text) -> bytea;
    "date_trunc" DateTrunc: (text, ts) -> ts, (text, tz) -> tz, (text, iv) -> iv, (text, tz, text) -> tz;
    "date_part" DatePart: (text, date) -> f8, (text, ts) -> f8, (text, tz) -> f8, (text, time) -> f8, (text, iv) -> f8;
    "extract" Extract: (text, date) -> num, (text, ts) -> num, (text, tz) -> num, (text, time) -> num,
        (text, iv) -> num;
    "age" Age: (ts, ts) -> iv, (tz, tz) -> iv;
    "timezone" AtTimeZone: (text, ts) -> tz, (text, tz) -> ts, (iv, ts) -> tz, (iv, tz) -> ts;
    "make_date" MakeDate: (i4, i4, i4) -> date;
    "to_timestamp" ToTimestamp: (f8) -> tz;
    "justify_hours" JustifyHours: (iv) -> iv;
};

/// The signatures of a name.
pub fn candidates(name: &str) -> impl Iterator<Item = &'static Signature> + '_ {
    SIGNATURES.iter().filter(move |signature| signature.name == name)
}

impl Function {
    /// Whether the result is NULL as soon as an argument is.
    pub fn is_strict(self) -> bool {
        !matches!(
            self,
            Function::ConcatAll
                | Function::ConcatSeparated
                | Function::Greatest
                | Function::Least
                | Function::NullIf
        )
    }

    /// Whether a call fails for no arguments whatsoever.
    pub fn is_total(self) -> bool {
        matches!(
            self,
            Function::Identity
                | Function::BitAnd
                | Function::BitOr
                | Function::BitXor
                | Function::BitNot
                | Function::ShiftLeft
                | Function::ShiftRight
                | Function::Sign
                | Function::Pi
                | Function::Greatest
                | Function::Least
                | Function::NullIf
                | Function::Length
                | Function::OctetLength
                | Function::Lower
                | Function::Upper
                | Function::InitCap
                | Function::Trim
                | Function::TrimLeft
                | Function::TrimRight
                | Function::Left
                | Function::Right
                | Function::Reverse
                | Function::Position
                | Function::StartsWith
                | Function::Ascii
                | Function::Md5
                | Function::ToHex
                | Function::Translate
        )
    }
}
