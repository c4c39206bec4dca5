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
    /// `sin`
    Sin,
    /// `cos`
    Cos,
    /// `tan`
    Tan,
    /// `cot`
    Cot,
    /// `asin`
    Asin,
    /// `acos`
    Acos,
    /// `atan`
    Atan,
    /// `atan2`
    Atan2,
    /// `sind`
    SinDegrees,
    /// `cosd`
    CosDegrees,
    /// `tand`
    TanDegrees,
    /// `cotd`
    CotDegrees,
    /// `asind`
    AsinDegrees,
    /// `acosd`
    AcosDegrees,
    /// `atand`
    AtanDegrees,
    /// `atan2d`
    Atan2Degrees,
    /// `sinh`
    Sinh,
    /// `cosh`
    Cosh,
    /// `tanh`
    Tanh,
    /// `asinh`
    Asinh,
    /// `acosh`
    Acosh,
    /// `atanh`
    Atanh,
    /// `gcd`
    Gcd,
    /// `lcm`
    Lcm,
    /// `factorial`
    Factorial,
    /// `width_bucket`
    WidthBucket,
    /// `scale`
    Scale,
    /// `min_scale`
    MinScale,
    /// `trim_scale`
    TrimScale,
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
    /// `overlay`
    Overlay,
    /// `quote_literal`
    QuoteLiteral,
    /// `quote_nullable`: `NULL` for NULL
    QuoteNullable,
    /// `quote_ident`
    QuoteIdentifier,
    /// `format`
    Format,
    /// `num_nulls`
    NumNulls,
    /// `num_nonnulls`
    NumNonNulls,
    /// `get_byte`
    GetByte,
    /// `set_byte`
    SetByte,
    /// `get_bit`
    GetBit,
    /// `set_bit`
    SetBit,
    /// `bit_count`
    BitCount,
    /// `convert_from`
    ConvertFrom,
    /// `convert_to`
    ConvertTo,
    /// `regexp_like`
    RegexLike,
    /// `to_char`
    ToChar,
    /// `to_number`
    ToNumber,
    /// `to_date`
    ToDate,
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
    /// `make_time`
    MakeTime,
    /// `make_timestamp`
    MakeTimestamp,
    /// `make_timestamptz`
    MakeTimestampTz,
    /// `make_interval`
    MakeInterval,
    /// `to_timestamp` of seconds since 1970, or of a text by a template
    ToTimestamp,
    /// `justify_hours`
    JustifyHours,
    /// `justify_days`
    JustifyDays,
    /// `justify_interval`
    JustifyInterval,
    /// `isfinite`
    IsFinite,
    /// `date_bin`
    DateBin,
    /// A subquery's first value, of so many rows: an error if there are several. It has no name in SQL.
    OnlyRow,
    /// The number of rows of LIMIT: an error if it is negative. It has no name in SQL.
    LimitCount,
    /// The number of rows of OFFSET: an error if it is negative. It has no name in SQL.
    OffsetCount,
    /// `like_escape`: a pattern in which a backslash escapes, from one in which another character does
    LikeEscape,
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
    pub const bpchar: Type = Type::Char(0);
    pub const bytea: Type = Type::Bytea;
    pub const date: Type = Type::Date;
    pub const time: Type = Type::Time;
    pub const ts: Type = Type::Timestamp;
    pub const tz: Type = Type::TimestampTz;
    pub const iv: Type = Type::Interval;
}

/// Every signature. `concat`, `concat_ws`, `greatest`, `least`, `nullif`, `format`, `quote_literal`, `quote_nullable`,
/// `num_nulls` and `num_nonnulls` take arguments of any type and are resolved by [`super::resolve()`].
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
    "~" RegexMatch: (text, text) -> bool, (bpchar, text) -> bool;
    "~*" RegexMatchInsensitive: (text, text) -> bool, (bpchar, text) -> bool;
    "!~" RegexNotMatch: (text, text) -> bool, (bpchar, text) -> bool;
    "!~*" RegexNotMatchInsensitive: (text, text) -> bool, (bpchar, text) -> bool;
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
    "sin" Sin: (f8) -> f8;
    "cos" Cos: (f8) -> f8;
    "tan" Tan: (f8) -> f8;
    "cot" Cot: (f8) -> f8;
    "asin" Asin: (f8) -> f8;
    "acos" Acos: (f8) -> f8;
    "atan" Atan: (f8) -> f8;
    "atan2" Atan2: (f8, f8) -> f8;
    "sind" SinDegrees: (f8) -> f8;
    "cosd" CosDegrees: (f8) -> f8;
    "tand" TanDegrees: (f8) -> f8;
    "cotd" CotDegrees: (f8) -> f8;
    "asind" AsinDegrees: (f8) -> f8;
    "acosd" AcosDegrees: (f8) -> f8;
    "atand" AtanDegrees: (f8) -> f8;
    "atan2d" Atan2Degrees: (f8, f8) -> f8;
    "sinh" Sinh: (f8) -> f8;
    "cosh" Cosh: (f8) -> f8;
    "tanh" Tanh: (f8) -> f8;
    "asinh" Asinh: (f8) -> f8;
    "acosh" Acosh: (f8) -> f8;
    "atanh" Atanh: (f8) -> f8;
    "gcd" Gcd: (i4, i4) -> i4, (i8, i8) -> i8, (num, num) -> num;
    "lcm" Lcm: (i4, i4) -> i4, (i8, i8) -> i8, (num, num) -> num;
    "factorial" Factorial: (i8) -> num;
    "width_bucket" WidthBucket: (f8, f8, f8, i4) -> i4, (num, num, num, i4) -> i4;
    "scale" Scale: (num) -> i4;
    "min_scale" MinScale: (num) -> i4;
    "trim_scale" TrimScale: (num) -> num;
    "degrees" Degrees: (f8) -> f8;
    "radians" Radians: (f8) -> f8;
    "length" Length: (text) -> i4, (bytea) -> i4;
    "char_length" Length: (text) -> i4;
    "character_length" Length: (text) -> i4;
    "octet_length" OctetLength: (text) -> i4, (bpchar) -> i4, (bytea) -> i4;
    "bit_length" BitLength: (text) -> i4, (bytea) -> i4;
    "lower" Lower: (text) -> text;
    "upper" Upper: (text) -> text;
    "initcap" InitCap: (text) -> text;
    "btrim" Trim: (text) -> text, (text, text) -> text, (bytea, bytea) -> bytea;
    "trim" Trim: (text) -> text, (text, text) -> text;
    "ltrim" TrimLeft: (text) -> text, (text, text) -> text, (bytea, bytea) -> bytea;
    "rtrim" TrimRight: (text) -> text, (text, text) -> text, (bytea, bytea) -> bytea;
    "overlay" Overlay: (text, text, i4) -> text, (text, text, i4, i4) -> text, (bytea, bytea, i4) -> bytea,
        (bytea, bytea, i4, i4) -> bytea;
    "quote_ident" QuoteIdentifier: (text) -> text;
    "get_byte" GetByte: (bytea, i4) -> i4;
    "set_byte" SetByte: (bytea, i4, i4) -> bytea;
    "get_bit" GetBit: (bytea, i8) -> i4;
    "set_bit" SetBit: (bytea, i8, i4) -> bytea;
    "bit_count" BitCount: (bytea) -> i8;
    "convert_from" ConvertFrom: (bytea, text) -> text;
    "convert_to" ConvertTo: (text, text) -> bytea;
    "like_escape" LikeEscape: (text, text) -> text;
    "regexp_like" RegexLike: (text, text) -> bool, (text, text, text) -> bool;
    "to_char" ToChar: (ts, text) -> text, (tz, text) -> text, (iv, text) -> text, (num, text) -> text,
        (i4, text) -> text, (i8, text) -> text, (f4, text) -> text, (f8, text) -> text;
    "to_number" ToNumber: (text, text) -> num;
    "to_date" ToDate: (text, text) -> date;
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
    "position" Position: (text, text) -> i4, (bytea, bytea) -> i4;
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
    "make_time" MakeTime: (i4, i4, f8) -> time;
    "make_timestamp" MakeTimestamp: (i4, i4, i4, i4, i4, f8) -> ts;
    "make_timestamptz" MakeTimestampTz: (i4, i4, i4, i4, i4, f8) -> tz, (i4, i4, i4, i4, i4, f8, text) -> tz;
    "make_interval" MakeInterval: () -> iv, (i4) -> iv, (i4, i4) -> iv, (i4, i4, i4) -> iv, (i4, i4, i4, i4) -> iv,
        (i4, i4, i4, i4, i4) -> iv, (i4, i4, i4, i4, i4, i4) -> iv, (i4, i4, i4, i4, i4, i4, f8) -> iv;
    "to_timestamp" ToTimestamp: (f8) -> tz, (text, text) -> tz;
    "justify_hours" JustifyHours: (iv) -> iv;
    "justify_days" JustifyDays: (iv) -> iv;
    "justify_interval" JustifyInterval: (iv) -> iv;
    "isfinite" IsFinite: (date) -> bool, (ts) -> bool, (tz) -> bool, (iv) -> bool;
    "date_bin" DateBin: (iv, ts, ts) -> ts, (iv, tz, tz) -> tz;
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
                | Function::Format
                | Function::QuoteNullable
                | Function::NumNulls
                | Function::NumNonNulls
                | Function::OnlyRow
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
                | Function::NumNulls
                | Function::NumNonNulls
                | Function::IsFinite
                | Function::BitCount
                | Function::Scale
                | Function::MinScale
        )
    }
}
