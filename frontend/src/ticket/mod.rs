//! The Ticket table: the use case of section 2 of the Crescando/RB paper, filled with made-up people.
//!
//! One row for every person on a plane, 47 columns, about 350 bytes a row as text. The paper's table belongs to a
//! booking system and is not public, so this one is built from what the paper tells about it: a record locator
//! (`rloc`) with several tickets each (travel parties, and legs of a journey), a departure date, and many flags of
//! which nearly every row has none (wheelchair, diet, unaccompanied minor, …). Airports, airlines, names, cabins and
//! dates are as skewed as they are in the world: a few airports have most of the passengers.
//!
//! Rows come in [`block`]s of [`BLOCK_ROWS`]. A row's content depends on the seed and its number alone, so any number
//! of threads may generate blocks in any order.

mod batch;
mod generate;
mod random;
mod stream;
mod text;
mod world;

use carousel_engine::Type;

pub use batch::{arrow_schema, record_batch};
pub use generate::block;
pub use stream::CsvStream;
pub use text::write_csv;

/// Rows of a block; the last block of a table may be cut short.
pub const BLOCK_ROWS: usize = 4096;

/// No table has more rows: record locators have 30 bits.
pub const MAX_ROWS: u64 = 1 << 30;

/// The name of the table.
pub const TABLE: &str = "ticket";

/// A column: name, type, and whether it is NOT NULL.
pub type TicketColumn = (&'static str, Type, bool);

/// The columns, in order.
pub const COLUMNS: [TicketColumn; 47] = [
    ("rloc", Type::Char(6), true),
    ("passenger", Type::Int2, true),
    ("segment", Type::Int2, true),
    ("ticket_number", Type::Int8, true),
    ("booking_id", Type::Uuid, true),
    ("status", Type::Char(2), true),
    ("booked_at", Type::TimestampTz, true),
    ("changed_at", Type::TimestampTz, true),
    ("airline", Type::Char(2), true),
    ("operating_airline", Type::Char(2), false),
    ("flight_number", Type::Int2, true),
    ("origin", Type::Char(3), true),
    ("destination", Type::Char(3), true),
    ("date_out", Type::Date, true),
    ("time_out", Type::Time, true),
    ("arrives_at", Type::Timestamp, true),
    ("date_return", Type::Date, false),
    ("cabin", Type::Char(1), true),
    ("booking_class", Type::Char(1), true),
    ("fare_basis", Type::Varchar(Some(12)), true),
    ("fare", Type::Numeric(Some((10, 2))), true),
    ("taxes", Type::Numeric(Some((10, 2))), true),
    ("currency", Type::Char(3), true),
    ("payment_form", Type::Varchar(Some(4)), true),
    ("surname", Type::Varchar(Some(40)), true),
    ("given_name", Type::Varchar(Some(40)), true),
    ("gender", Type::Char(1), false),
    ("birth_date", Type::Date, false),
    ("nationality", Type::Char(2), false),
    ("frequent_flyer", Type::Varchar(Some(16)), false),
    ("tier", Type::Int2, false),
    ("contact", Type::Text, false),
    ("seat", Type::Varchar(Some(4)), false),
    ("bags", Type::Int2, true),
    ("bag_weight", Type::Float4, true),
    ("diet", Type::Char(4), false),
    ("wheelchair", Type::Bool, true),
    ("unaccompanied_minor", Type::Bool, true),
    ("infant", Type::Bool, true),
    ("pet", Type::Bool, true),
    ("medical_clearance", Type::Bool, true),
    ("oversized_bag", Type::Bool, true),
    ("standby", Type::Bool, true),
    ("agency_office", Type::Char(9), true),
    ("agency_iata", Type::Int4, true),
    ("co2", Type::Float8, true),
    ("document", Type::Bytea, false),
];

/// Columns of the primary key; the first one partitions the table.
pub const KEY: [&str; 3] = ["rloc", "passenger", "segment"];

/// A string of at most `N` bytes that needs no allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Inline<const N: usize> {
    length: u8,
    bytes: [u8; N],
}

impl<const N: usize> Inline<N> {
    const fn new() -> Self {
        Inline { length: 0, bytes: [0; N] }
    }

    /// Appends as much of an ASCII text as there is room for.
    fn push(&mut self, text: &[u8]) {
        let start = usize::from(self.length);
        let count = text.len().min(N - start);
        self.bytes[start..start + count].copy_from_slice(&text[..count]);
        self.length = (start + count) as u8;
    }

    /// Appends the last `digits` decimal digits of a number.
    fn push_digits(&mut self, mut number: u64, digits: usize) {
        let mut text = [b'0'; 20];
        for digit in text[..digits].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        self.push(&text[..digits]);
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("only ASCII is pushed")
    }
}

/// One row. Dates are days, times are seconds, both since 1970; money is in cents of its currency.
#[derive(Clone, Debug, PartialEq)]
pub struct Ticket {
    rloc: Inline<6>,
    passenger: i16,
    segment: i16,
    ticket_number: i64,
    booking_id: [u8; 16],
    status: &'static str,
    booked_at: i64,
    changed_at: i64,
    airline: &'static str,
    operating_airline: Option<&'static str>,
    flight_number: i16,
    origin: &'static str,
    destination: &'static str,
    date_out: i32,
    time_out: i32,
    arrives_at: i64,
    date_return: Option<i32>,
    cabin: &'static str,
    booking_class: &'static str,
    fare_basis: Inline<12>,
    fare_cents: i64,
    taxes_cents: i64,
    currency: &'static str,
    payment_form: &'static str,
    surname: Inline<40>,
    given_name: &'static str,
    gender: Option<&'static str>,
    birth_date: Option<i32>,
    nationality: Option<&'static str>,
    frequent_flyer: Option<Inline<16>>,
    tier: Option<i16>,
    contact: Option<Inline<48>>,
    seat: Option<Inline<4>>,
    bags: i16,
    bag_weight_tenths: i32,
    diet: Option<&'static str>,
    wheelchair: bool,
    unaccompanied_minor: bool,
    infant: bool,
    pet: bool,
    medical_clearance: bool,
    oversized_bag: bool,
    standby: bool,
    agency_office: Inline<9>,
    agency_iata: i32,
    co2_tenths: i64,
    document: Option<[u8; 8]>,
}

/// Receives the fields of a row, in the order of [`COLUMNS`].
trait FieldVisitor {
    fn boolean(&mut self, value: bool);
    fn int2(&mut self, value: Option<i16>);
    fn int4(&mut self, value: i32);
    fn int8(&mut self, value: i64);
    fn real_tenths(&mut self, tenths: i32);
    fn double_tenths(&mut self, tenths: i64);
    fn cents(&mut self, cents: i64);
    fn text(&mut self, value: Option<&str>);
    fn date(&mut self, days: Option<i32>);
    fn time(&mut self, seconds: i32);
    fn timestamp(&mut self, seconds: i64);
    fn timestamptz(&mut self, seconds: i64);
    fn uuid(&mut self, value: &[u8; 16]);
    fn bytea(&mut self, value: Option<&[u8]>);
}

impl Ticket {
    /// The one place that puts the fields in the order of [`COLUMNS`].
    fn visit(&self, visitor: &mut impl FieldVisitor) {
        visitor.text(Some(self.rloc.as_str()));
        visitor.int2(Some(self.passenger));
        visitor.int2(Some(self.segment));
        visitor.int8(self.ticket_number);
        visitor.uuid(&self.booking_id);
        visitor.text(Some(self.status));
        visitor.timestamptz(self.booked_at);
        visitor.timestamptz(self.changed_at);
        visitor.text(Some(self.airline));
        visitor.text(self.operating_airline);
        visitor.int2(Some(self.flight_number));
        visitor.text(Some(self.origin));
        visitor.text(Some(self.destination));
        visitor.date(Some(self.date_out));
        visitor.time(self.time_out);
        visitor.timestamp(self.arrives_at);
        visitor.date(self.date_return);
        visitor.text(Some(self.cabin));
        visitor.text(Some(self.booking_class));
        visitor.text(Some(self.fare_basis.as_str()));
        visitor.cents(self.fare_cents);
        visitor.cents(self.taxes_cents);
        visitor.text(Some(self.currency));
        visitor.text(Some(self.payment_form));
        visitor.text(Some(self.surname.as_str()));
        visitor.text(Some(self.given_name));
        visitor.text(self.gender);
        visitor.date(self.birth_date);
        visitor.text(self.nationality);
        visitor.text(self.frequent_flyer.as_ref().map(Inline::as_str));
        visitor.int2(self.tier);
        visitor.text(self.contact.as_ref().map(Inline::as_str));
        visitor.text(self.seat.as_ref().map(Inline::as_str));
        visitor.int2(Some(self.bags));
        visitor.real_tenths(self.bag_weight_tenths);
        visitor.text(self.diet);
        visitor.boolean(self.wheelchair);
        visitor.boolean(self.unaccompanied_minor);
        visitor.boolean(self.infant);
        visitor.boolean(self.pet);
        visitor.boolean(self.medical_clearance);
        visitor.boolean(self.oversized_bag);
        visitor.boolean(self.standby);
        visitor.text(Some(self.agency_office.as_str()));
        visitor.int4(self.agency_iata);
        visitor.double_tenths(self.co2_tenths);
        visitor.bytea(self.document.as_ref().map(|digest| &digest[..]));
    }
}

/// How many blocks hold `rows` rows.
pub fn blocks(rows: u64) -> u64 {
    rows.div_ceil(BLOCK_ROWS as u64)
}

/// How many rows of a table of `rows` rows are in a block.
pub fn rows_in_block(rows: u64, block: u64) -> usize {
    rows.saturating_sub(block * BLOCK_ROWS as u64).min(BLOCK_ROWS as u64) as usize
}

/// The rows of one block of a table of `rows` rows.
pub fn block_of(seed: u64, number: u64, rows: u64) -> Vec<Ticket> {
    let mut tickets = block(seed, number);
    tickets.truncate(rows_in_block(rows, number));
    tickets
}

/// `CREATE TABLE ticket`; with `partitioned`, Carousel's `PARTITION BY HASH (rloc)`, which for PostgreSQL would mean
/// a table without partitions.
pub fn create_table(partitioned: bool) -> String {
    let mut sql = format!("CREATE TABLE {TABLE} (\n");
    for (name, ty, not_null) in &COLUMNS {
        sql.push_str(&format!("    {name} {ty}{},\n", if *not_null { " NOT NULL" } else { "" }));
    }
    sql.push_str(&format!("    PRIMARY KEY ({})\n)", KEY.join(", ")));
    if partitioned {
        sql.push_str(&format!(" PARTITION BY HASH ({})", KEY[0]));
    }
    sql
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    fn sample() -> Vec<Ticket> {
        (0..12).flat_map(|number| block(42, number)).collect()
    }

    #[test]
    fn blocks_are_a_function_of_seed_and_number() {
        assert_eq!(block(1, 7), block(1, 7));
        assert_ne!(block(1, 7), block(1, 8));
        assert_ne!(block(1, 7), block(2, 7));
        let in_order: Vec<_> = (0..4).map(|number| block(5, number)).collect();
        let threads: Vec<_> = (0..4).map(|number| std::thread::spawn(move || block(5, number))).collect();
        for (expected, thread) in in_order.iter().zip(threads).rev() {
            assert_eq!(expected, &thread.join().unwrap());
        }
    }

    #[test]
    fn a_row_of_this_seed_never_changes() {
        let mut csv = Vec::new();
        write_csv(&block(0, 3)[100..102], &mut csv);
        assert_eq!(String::from_utf8(csv).unwrap(), include_str!("golden.csv"));
    }

    #[test]
    fn a_table_is_cut_to_its_number_of_rows() {
        let rows = BLOCK_ROWS as u64 * 2 + 5;
        assert_eq!(blocks(rows), 3);
        let counts: Vec<usize> = (0..4).map(|number| rows_in_block(rows, number)).collect();
        assert_eq!(counts, [BLOCK_ROWS, BLOCK_ROWS, 5, 0]);
        assert_eq!(block_of(1, 2, rows), block(1, 2)[..5]);
        assert_eq!(blocks(0), 0);
    }

    #[test]
    fn the_key_is_unique_and_locators_are_shared() {
        let tickets = sample();
        let keys: BTreeSet<_> = tickets.iter().map(|t| (t.rloc.bytes, t.passenger, t.segment)).collect();
        assert_eq!(keys.len(), tickets.len());
        let bookings: BTreeSet<_> = tickets.iter().map(|t| t.rloc.bytes).collect();
        let each = tickets.len() as f64 / bookings.len() as f64;
        assert!((2.0..5.0).contains(&each), "{each} tickets for each locator");
        assert_eq!(bookings.len(), tickets.iter().map(|t| t.booking_id).collect::<BTreeSet<_>>().len());
    }

    #[test]
    fn a_row_has_about_350_bytes_of_text() {
        let tickets = sample();
        let mut csv = Vec::new();
        write_csv(&tickets, &mut csv);
        let mean = csv.len() as f64 / tickets.len() as f64;
        assert!((300.0..400.0).contains(&mean), "{mean} bytes a row");
    }

    #[test]
    fn rows_are_skewed_and_flags_are_rare() {
        let tickets = sample();
        let count = |holds: &dyn Fn(&Ticket) -> bool| tickets.iter().filter(|t| holds(t)).count();
        let all = tickets.len();
        let mut origins = BTreeMap::new();
        for ticket in &tickets {
            *origins.entry(ticket.origin).or_insert(0_usize) += 1;
        }
        let mut frequencies: Vec<usize> = origins.values().copied().collect();
        frequencies.sort_unstable_by(|a, b| b.cmp(a));
        assert!(frequencies.len() > 200, "{} airports", frequencies.len());
        assert!(frequencies[..20].iter().sum::<usize>() > all / 4, "airports are not skewed");
        assert!(count(&|t| t.cabin == "Y") > all * 7 / 10);
        for (name, flag) in [
            ("wheelchair", (|t| t.wheelchair) as fn(&Ticket) -> bool),
            ("unaccompanied_minor", |t| t.unaccompanied_minor),
            ("infant", |t| t.infant),
            ("pet", |t| t.pet),
            ("medical_clearance", |t| t.medical_clearance),
            ("oversized_bag", |t| t.oversized_bag),
            ("standby", |t| t.standby),
            ("diet", |t| t.diet.is_some()),
        ] {
            let with = count(&flag);
            assert!(with > 0 && with < all / 10, "{name} is set in {with} of {all}");
        }
        assert!(tickets.iter().all(|t| t.origin != t.destination && t.booked_at <= t.changed_at));
        assert!(tickets.iter().all(|t| t.booked_at / 86_400 <= i64::from(t.date_out)));
        assert!(tickets.iter().all(|t| t.date_return.is_none_or(|back| back >= t.date_out || t.segment > 1)));
    }

    #[test]
    fn the_ddl_names_every_column() {
        let sql = create_table(true);
        assert!(sql.starts_with("CREATE TABLE ticket (\n    rloc character(6) NOT NULL,\n"));
        assert!(sql.ends_with("PRIMARY KEY (rloc, passenger, segment)\n) PARTITION BY HASH (rloc)"));
        assert_eq!(COLUMNS.iter().map(|c| c.0).collect::<BTreeSet<_>>().len(), 47);
        let types: BTreeSet<_> = COLUMNS.iter().map(|c| format!("{}", c.1.without_modifiers())).collect();
        assert!(types.len() >= 15, "{types:?}");
    }
}
