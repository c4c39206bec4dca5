//! The world that tickets are about: airports, airlines, names, codes. Facts, with rounded weights.

use std::sync::LazyLock;

use super::random::Weighted;

/// An airport.
#[derive(Clone, Debug)]
pub struct Airport {
    /// IATA code.
    pub code: &'static str,
    /// ISO 3166 country.
    pub country: &'static str,
    /// Degrees north.
    pub latitude: f64,
    /// Degrees east.
    pub longitude: f64,
}

/// An airline.
#[derive(Clone, Debug)]
pub struct Airline {
    /// IATA code.
    pub code: &'static str,
    /// The three digits its ticket numbers begin with.
    pub prefix: u16,
    /// Indices of its hubs among the airports.
    pub hubs: Vec<usize>,
}

/// Airports and airlines with what is derived from them.
pub struct World {
    /// All airports.
    pub airports: Vec<Airport>,
    /// All airlines.
    pub airlines: Vec<Airline>,
    /// Airports by passengers.
    pub airport: Weighted,
    /// Airlines by passengers.
    pub airline: Weighted,
    /// Great-circle distances in kilometres, airport by airport.
    kilometres: Vec<u16>,
}

/// The one world.
pub static WORLD: LazyLock<World> = LazyLock::new(World::new);

impl World {
    fn new() -> World {
        let mut weights = Vec::new();
        let airports: Vec<Airport> = AIRPORTS
            .split_whitespace()
            .collect::<Vec<_>>()
            .chunks_exact(5)
            .map(|fields| {
                let number = |text: &str| text.parse::<f64>().expect("the list of airports holds numbers");
                weights.push(number(fields[4]) as u64);
                Airport {
                    code: fields[0],
                    country: fields[1],
                    latitude: number(fields[2]),
                    longitude: number(fields[3]),
                }
            })
            .collect();
        let find =
            |code: &str| airports.iter().position(|a| a.code == code).expect("a hub is a listed airport");
        let mut airline_weights = Vec::new();
        let airlines = AIRLINES
            .lines()
            .map(|line| {
                let mut fields = line.split_whitespace();
                let mut next = || fields.next().expect("an airline has a code, a prefix and a weight");
                let (code, prefix, weight) = (next(), next(), next());
                airline_weights.push(weight.parse().expect("a weight is a number"));
                Airline {
                    code,
                    prefix: prefix.parse().expect("a prefix is a number"),
                    hubs: fields.map(find).collect(),
                }
            })
            .collect();
        let kilometres = airports
            .iter()
            .flat_map(|from| airports.iter().map(move |to| great_circle_km(from, to) as u16))
            .collect();
        World {
            airport: Weighted::new(&weights),
            airline: Weighted::new(&airline_weights),
            airports,
            airlines,
            kilometres,
        }
    }

    /// Great-circle distance between two airports.
    pub fn kilometres(&self, from: usize, to: usize) -> u32 {
        u32::from(self.kilometres[from * self.airports.len() + to])
    }
}

fn great_circle_km(from: &Airport, to: &Airport) -> f64 {
    let (from_latitude, to_latitude) = (from.latitude.to_radians(), to.latitude.to_radians());
    let half_latitude = ((to_latitude - from_latitude) / 2.0).sin();
    let half_longitude = ((to.longitude - from.longitude).to_radians() / 2.0).sin();
    let a = half_latitude * half_latitude
        + from_latitude.cos() * to_latitude.cos() * half_longitude * half_longitude;
    (2.0 * 6371.0 * a.sqrt().min(1.0).asin()).round()
}

/// The currency that tickets sold in a country are paid in.
pub fn currency(country: &str) -> &'static str {
    match country {
        "AT" | "BE" | "CY" | "DE" | "ES" | "FI" | "FR" | "GR" | "HR" | "IE" | "IT" | "LT" | "LU" | "LV"
        | "MT" | "NL" | "PT" | "EE" => "EUR",
        "GB" => "GBP",
        "CH" => "CHF",
        "JP" => "JPY",
        "CN" => "CNY",
        "IN" => "INR",
        "CA" => "CAD",
        "AU" => "AUD",
        "BR" => "BRL",
        "SE" => "SEK",
        "NO" => "NOK",
        "DK" => "DKK",
        "TR" => "TRY",
        "AE" => "AED",
        "SG" => "SGD",
        "HK" => "HKD",
        "KR" => "KRW",
        _ => "USD",
    }
}

/// Code, country, latitude, longitude, passengers a year in 100,000s.
const AIRPORTS: &str = "
ATL US 33.6 -84.4 1047   DXB AE 25.3 55.4 870    DFW US 32.9 -97.0 817    LHR GB 51.5 -0.5 792
HND JP 35.6 139.8 787    DEN US 39.9 -104.7 778  IST TR 41.3 28.7 760     LAX US 33.9 -118.4 750
ORD US 42.0 -87.9 739    DEL IN 28.6 77.1 722    CDG FR 49.0 2.5 674      JFK US 40.6 -73.8 625
CAN CN 23.4 113.3 632    AMS NL 52.3 4.8 619     MAD ES 40.5 -3.6 602     FRA DE 50.0 8.6 594
SIN SG 1.4 104.0 589     ICN KR 37.5 126.5 560   LAS US 36.1 -115.2 577   MCO US 28.4 -81.3 577
PVG CN 31.1 121.8 545    CLT US 35.2 -80.9 535   PEK CN 40.1 116.6 529    MIA US 25.8 -80.3 523
SEA US 47.4 -122.3 509   BOM IN 19.1 72.9 518    SFO US 37.6 -122.4 502   BKK TH 13.7 100.7 517
CGK ID -6.1 106.7 497    EWR US 40.7 -74.2 491   BCN ES 41.3 2.1 499      PHX US 33.4 -112.0 487
KUL MY 2.7 101.7 472     MEX MX 19.4 -99.1 484   IAH US 30.0 -95.3 461    DOH QA 25.3 51.6 459
YYZ CA 43.7 -79.6 448    JED SA 21.7 39.2 428    HKG HK 22.3 113.9 395    GRU BR -23.4 -46.5 417
FCO IT 41.8 12.2 405     LGW GB 51.2 -0.2 409    BOS US 42.4 -71.0 408    SZX CN 22.6 113.8 527
MUC DE 48.4 11.8 370     SYD AU -33.9 151.2 386  SAW TR 40.9 29.3 372     MSP US 44.9 -93.2 347
FLL US 26.1 -80.2 351    LGA US 40.8 -73.9 325   DTW US 42.2 -83.4 315    ORY FR 48.7 2.4 323
DUB IE 53.4 -6.2 335     LIS PT 38.8 -9.1 337    CTU CN 30.6 104.0 448    SGN VN 10.8 106.7 400
MEL AU -37.7 144.8 335   RUH SA 25.0 46.7 319    MNL PH 14.5 121.0 450    NRT JP 35.8 140.4 327
PMI ES 39.6 2.7 311      PHL US 39.9 -75.2 281   AYT TR 36.9 30.8 359     VIE AT 48.1 16.6 296
ZRH CH 47.5 8.5 289      ATH GR 37.9 23.9 281    STN GB 51.9 0.2 279      MAN GB 53.4 -2.3 281
CPH DK 55.6 12.7 268     BLR IN 13.2 77.7 372    KMG CN 25.1 102.9 420    XIY CN 34.4 108.8 414
BOG CO 4.7 -74.1 395     HYD IN 17.2 78.4 244    SVO RU 56.0 37.4 366     YVR CA 49.2 -123.2 249
OSL NO 60.2 11.1 251     MXP IT 45.6 8.7 260     CAI EG 30.1 31.4 264     BNE AU -27.4 153.1 226
BRU BE 50.9 4.5 222      ARN SE 59.7 17.9 218    AUH AE 24.4 54.7 230     SLC US 40.8 -112.0 269
BWI US 39.2 -76.7 262    IAD US 38.9 -77.5 251   SAN US 32.7 -117.2 242   DCA US 38.9 -77.0 255
TPA US 28.0 -82.5 239    BNA US 36.1 -86.7 229   AUS US 30.2 -97.7 221    MDW US 41.8 -87.8 223
HNL US 21.3 -157.9 214   DAL US 32.8 -96.9 178   PDX US 45.6 -122.6 165   STL US 38.7 -90.4 149
HOU US 29.6 -95.3 142    RDU US 35.9 -78.8 145   MSY US 30.0 -90.3 129    SMF US 38.7 -121.6 129
SJC US 37.4 -121.9 121   SNA US 33.7 -117.9 117  MCI US 39.3 -94.7 115    SAT US 29.5 -98.5 107
OAK US 37.7 -122.2 112   CLE US 41.4 -81.8 99    IND US 39.7 -86.3 97     PIT US 40.5 -80.2 92
CVG US 39.0 -84.7 87     CMH US 40.0 -82.9 83    RSW US 26.5 -81.8 101    JAX US 30.5 -81.7 75
BDL US 41.9 -72.7 62     MKE US 42.9 -87.9 61    ABQ US 35.0 -106.6 51    ANC US 61.2 -150.0 54
BUF US 42.9 -78.7 46     OMA US 41.3 -95.9 51    RIC US 37.5 -77.3 48     SDF US 38.2 -85.7 46
OGG US 20.9 -156.4 72    BUR US 34.2 -118.4 60   MEM US 35.0 -90.0 48     BOI US 43.6 -116.2 48
YUL CA 45.5 -73.7 212    YYC CA 51.1 -114.0 185  YEG CA 53.3 -113.6 75    YOW CA 45.3 -75.7 41
YHZ CA 44.9 -63.5 36     YWG CA 49.9 -97.2 41    CUN MX 21.0 -86.9 327    GDL MX 20.5 -103.3 177
MTY MX 25.8 -100.1 133   TIJ MX 32.5 -117.0 132  SJU PR 18.4 -66.0 122    PUJ DO 18.6 -68.4 92
SDQ DO 18.4 -69.7 55     HAV CU 23.0 -82.4 20    PTY PA 9.1 -79.4 178     SJO CR 10.0 -84.2 56
GUA GT 14.6 -90.5 33     SAL SV 13.4 -89.1 41    MDE CO 6.2 -75.4 110     CTG CO 10.4 -75.5 71
LIM PE -12.0 -77.1 212   UIO EC -0.1 -78.4 50    GYE EC -2.2 -79.9 45     SCL CL -33.4 -70.8 234
EZE AR -34.8 -58.5 105   AEP AR -34.6 -58.4 165  COR AR -31.3 -64.2 32    MVD UY -34.8 -56.0 18
ASU PY -25.2 -57.5 11    CCS VE 10.6 -67.0 40    GIG BR -22.8 -43.2 79    BSB BR -15.9 -47.9 148
CGH BR -23.6 -46.7 220   SDU BR -22.9 -43.2 115  CNF BR -19.6 -44.0 105   SSA BR -12.9 -38.3 72
REC BR -8.1 -34.9 91     POA BR -30.0 -51.2 75   FOR BR -3.8 -38.5 56     CWB BR -25.5 -49.2 57
DUS DE 51.3 6.8 191      BER DE 52.4 13.5 231    HAM DE 53.6 10.0 136     STR DE 48.7 9.2 84
CGN DE 50.9 7.1 98       HAJ DE 52.5 9.7 46      NUE DE 49.5 11.1 39      LEJ DE 51.4 12.2 21
NCE FR 43.7 7.2 142      LYS FR 45.7 5.1 100     MRS FR 43.4 5.2 108      TLS FR 43.6 1.4 78
BOD FR 44.8 -0.7 66      NTE FR 47.2 -1.6 65     BSL FR 47.6 7.5 81       GVA CH 46.2 6.1 164
LIN IT 45.4 9.3 94       VCE IT 45.5 12.4 113    NAP IT 40.9 14.3 124     BGY IT 45.7 9.7 160
BLQ IT 44.5 11.3 100     CTA IT 37.5 15.1 107    PSA IT 43.7 10.4 51      PMO IT 38.2 13.1 81
AGP ES 36.7 -4.5 223     ALC ES 38.3 -0.6 158    VLC ES 39.5 -0.5 99      SVQ ES 37.4 -5.9 81
BIO ES 43.3 -2.9 64      LPA ES 27.9 -15.4 139   TFS ES 28.0 -16.6 123    IBZ ES 38.9 1.4 89
OPO PT 41.2 -8.7 152     FAO PT 37.0 -8.0 96     FNC PT 32.7 -16.8 46     EDI GB 55.9 -3.4 144
BHX GB 52.5 -1.7 115     GLA GB 55.9 -4.4 74     BRS GB 51.4 -2.7 99      LTN GB 51.9 -0.4 162
NCL GB 55.0 -1.7 48      BFS GB 54.7 -6.2 60     LCY GB 51.5 0.1 34       ORK IE 51.8 -8.5 28
BGO NO 60.3 5.2 68       TRD NO 63.5 10.9 45     SVG NO 58.9 5.6 43       GOT SE 57.7 12.3 54
HEL FI 60.3 25.0 153     KEF IS 64.0 -22.6 77    BLL DK 55.7 9.2 37       RIX LV 56.9 24.0 66
VNO LT 54.6 25.3 44      TLL EE 59.4 24.8 30     WAW PL 52.2 21.0 185     KRK PL 50.1 19.8 94
GDN PL 54.4 18.5 59      KTW PL 50.5 19.1 56     WRO PL 51.1 16.9 39      PRG CZ 50.1 14.3 138
BUD HU 47.4 19.3 147     OTP RO 44.6 26.1 146    CLJ RO 46.8 23.7 33      SOF BG 42.7 23.4 72
BEG RS 44.8 20.3 79      ZAG HR 45.7 16.1 37     SPU HR 43.5 16.3 34      DBV HR 42.6 18.3 24
TIA AL 41.4 19.7 73      SKG GR 40.5 23.0 70     HER GR 35.3 25.2 86      RHO GR 36.4 28.1 61
LCA CY 34.9 33.6 81      MLA MT 35.9 14.5 78     LUX LU 49.6 6.2 48       KBP UA 50.3 30.9 10
LED RU 59.8 30.3 204     DME RU 55.4 37.9 207    TBS GE 41.7 45.0 37      EVN AM 40.1 44.4 53
GYD AZ 40.5 50.1 57      ESB TR 40.1 33.0 119    ADB TR 38.3 27.2 107     TLV IL 32.0 34.9 211
AMM JO 31.7 36.0 92      BEY LB 33.8 35.5 71     KWI KW 29.2 48.0 156     BAH BH 26.3 50.6 95
MCT OM 23.6 58.3 120     DMM SA 26.5 49.8 109    MED SA 24.6 39.7 94      SHJ AE 25.3 55.5 153
IKA IR 35.4 51.2 82      BGW IQ 33.3 44.2 81     ISB PK 33.5 72.8 60      KHI PK 24.9 67.2 73
LHE PK 31.5 74.4 58      CMB LK 7.2 79.9 79      MLE MV 4.2 73.5 42       DAC BD 23.8 90.4 95
KTM NP 27.7 85.4 85      MAA IN 13.0 80.2 212    CCU IN 22.7 88.4 198     COK IN 10.2 76.4 104
AMD IN 23.1 72.6 117     PNQ IN 18.6 73.9 95     GOI IN 15.4 73.8 70      TAS UZ 41.3 69.3 80
ALA KZ 43.4 77.0 95      HGH CN 30.2 120.4 412   NKG CN 31.7 118.9 274    CKG CN 29.7 106.6 447
WUH CN 30.8 114.2 258    XMN CN 24.5 118.1 241   TAO CN 36.4 120.1 214    SHA CN 31.2 121.3 425
URC CN 43.9 87.5 251     HAK CN 19.9 110.5 243   TPE TW 25.1 121.2 354    KHH TW 22.6 120.4 64
GMP KR 37.6 126.8 237    CJU KR 33.5 126.5 291   PUS KR 35.2 128.9 137    KIX JP 34.4 135.2 260
ITM JP 34.8 135.4 147    FUK JP 33.6 130.5 240   CTS JP 42.8 141.7 230    NGO JP 34.9 136.8 95
OKA JP 26.2 127.6 196    HAN VN 21.2 105.8 297   DAD VN 16.0 108.2 120    PNH KH 11.5 104.8 45
RGN MM 16.9 96.1 31      DMK TH 13.9 100.6 270   HKT TH 8.1 98.3 140      CNX TH 18.8 99.0 77
PEN MY 5.3 100.3 66      BKI MY 5.9 116.0 71     DPS ID -8.7 115.2 214    SUB ID -7.4 112.8 138
UPG ID -5.1 119.6 96     CEB PH 10.3 124.0 100   GUM GU 13.5 144.8 20     PER AU -31.9 116.0 152
ADL AU -34.9 138.5 82    OOL AU -28.2 153.5 60   CBR AU -35.3 149.2 29    CNS AU -16.9 145.8 46
AKL NZ -37.0 174.8 183   CHC NZ -43.5 172.5 62   WLG NZ -41.3 174.8 55    NAN FJ -17.8 177.4 24
PPT PF -17.6 -149.6 15   JNB ZA -26.1 28.2 178   CPT ZA -34.0 18.6 99     DUR ZA -29.6 31.1 50
NBO KE -1.3 36.9 86      ADD ET 9.0 38.8 120     DAR TZ -6.9 39.2 30      EBB UG 0.0 32.4 19
KGL RW -2.0 30.1 11      LOS NG 6.6 3.3 68        ABV NG 9.0 7.3 58        ACC GH 5.6 -0.2 34
ABJ CI 5.3 -3.9 25       DSS SN 14.7 -17.1 28    CMN MA 33.4 -7.6 98      RAK MA 31.6 -8.0 69
ALG DZ 36.7 3.2 84       TUN TN 36.9 10.2 72     SSH EG 28.0 34.4 65      HRG EG 27.2 33.8 88
MRU MU -20.4 57.7 40     RUN RE -20.9 55.5 26    TNR MG -18.8 47.5 10     LAD AO -8.9 13.2 30
";

/// Code, ticket prefix, weight, hubs.
const AIRLINES: &str = "\
AA 001 1080 DFW CLT ORD MIA PHL
DL 006 1100 ATL DTW MSP SLC JFK
UA 016 960 ORD DEN IAH EWR SFO IAD
AS 027 260 SEA PDX ANC
B6 279 250 JFK BOS FLL
AC 014 280 YYZ YUL YVR
WS 838 130 YYC YYZ
AM 139 150 MEX MTY
CM 230 90 PTY
AV 134 190 BOG SAL
LA 045 380 SCL GRU LIM BSB
AR 044 70 AEP EZE
G3 127 150 GRU CGH GIG
AD 577 150 CNF REC CWB
LH 220 620 FRA MUC
BA 125 460 LHR LGW
VS 932 60 LHR MAN
EI 053 70 DUB
AF 057 420 CDG ORY
KL 074 320 AMS
IB 075 220 MAD
VY 030 180 BCN
LX 724 160 ZRH GVA
OS 257 120 VIE
SN 082 70 BRU
SK 117 180 CPH ARN OSL
AY 105 90 HEL
TP 047 130 LIS OPO
AZ 055 120 FCO LIN
LO 080 80 WAW
RO 281 25 OTP
A3 390 90 ATH
TK 235 560 IST ESB
EK 176 420 DXB
QR 157 290 DOH
EY 607 140 AUH
SV 065 200 JED RUH
RJ 512 30 AMM
ME 076 20 BEY
LY 114 45 TLV
MS 077 70 CAI
ET 071 110 ADD
KQ 706 35 NBO
SA 083 30 JNB
AT 147 60 CMN
AI 098 320 DEL BOM
UL 603 35 CMB
SQ 618 260 SIN
MH 232 140 KUL
TG 217 150 BKK
GA 126 90 CGK DPS
VN 738 160 SGN HAN
PR 079 110 MNL CEB
CX 160 180 HKG
CI 297 90 TPE
BR 695 90 TPE
CA 999 480 PEK CTU
MU 781 520 PVG SHA KMG
CZ 784 540 CAN URC
HU 880 210 HAK PEK XIY
JL 131 260 HND NRT ITM
NH 205 310 HND NRT
KE 180 190 ICN GMP
OZ 988 110 ICN GMP
QF 081 210 SYD MEL BNE
NZ 086 110 AKL CHC
FJ 260 15 NAN";

/// Family names, the frequent ones first.
pub const SURNAMES: &[&str] = &[
    "SMITH",
    "WANG",
    "GARCIA",
    "MULLER",
    "SINGH",
    "KIM",
    "LI",
    "SILVA",
    "JOHNSON",
    "MARTIN",
    "ZHANG",
    "RODRIGUEZ",
    "NGUYEN",
    "WILLIAMS",
    "SATO",
    "KUMAR",
    "SCHMIDT",
    "CHEN",
    "BROWN",
    "LEE",
    "MARTINEZ",
    "ROSSI",
    "KHAN",
    "JONES",
    "LIU",
    "HERNANDEZ",
    "SUZUKI",
    "DEVI",
    "BERNARD",
    "LOPEZ",
    "SANTOS",
    "DAVIS",
    "YANG",
    "GONZALEZ",
    "ALI",
    "TRAN",
    "SCHNEIDER",
    "HUANG",
    "PEREZ",
    "TAKAHASHI",
    "MILLER",
    "OLIVEIRA",
    "DUBOIS",
    "PARK",
    "SHARMA",
    "WILSON",
    "SANCHEZ",
    "ZHAO",
    "FISCHER",
    "RUSSO",
    "TANAKA",
    "MOORE",
    "WU",
    "RAMIREZ",
    "IVANOV",
    "THOMAS",
    "SOUZA",
    "WEBER",
    "YILMAZ",
    "ZHOU",
    "TAYLOR",
    "TORRES",
    "AHMED",
    "ROBERT",
    "WATANABE",
    "ANDERSON",
    "MEYER",
    "FLORES",
    "XU",
    "PHAM",
    "PATEL",
    "JACKSON",
    "RIVERA",
    "FERRARI",
    "SUN",
    "WAGNER",
    "ITO",
    "WHITE",
    "GOMEZ",
    "RICHARD",
    "CHOI",
    "HARRIS",
    "DIAZ",
    "MA",
    "BECKER",
    "DAS",
    "PEREIRA",
    "KAYA",
    "YAMAMOTO",
    "CLARK",
    "REYES",
    "ZHU",
    "PETIT",
    "NAKAMURA",
    "LEWIS",
    "MORALES",
    "HU",
    "SCHULZ",
    "HUSSAIN",
    "ROBINSON",
    "CRUZ",
    "GUO",
    "DURAND",
    "JUNG",
    "KOBAYASHI",
    "WALKER",
    "ORTIZ",
    "HE",
    "HOFFMANN",
    "GUPTA",
    "LIMA",
    "DEMIR",
    "YOUNG",
    "GUTIERREZ",
    "LIN",
    "LEROY",
    "ESPOSITO",
    "ALLEN",
    "CHAVEZ",
    "GAO",
    "KATO",
    "LUO",
    "KOCH",
    "KING",
    "RAMOS",
    "ZHENG",
    "MOREAU",
    "BIANCHI",
    "KANG",
    "WRIGHT",
    "RUIZ",
    "LIANG",
    "RICHTER",
    "RAO",
    "COSTA",
    "CELIK",
    "SCOTT",
    "MENDOZA",
    "XIE",
    "SIMON",
    "YOSHIDA",
    "ROMANO",
    "HILL",
    "ALVAREZ",
    "SONG",
    "KLEIN",
    "JOSHI",
    "FERREIRA",
    "SAHIN",
    "GREEN",
    "CASTILLO",
    "TANG",
    "LAURENT",
    "YAMADA",
    "COLOMBO",
    "CHO",
    "ADAMS",
    "JIMENEZ",
    "WOLF",
    "MISHRA",
    "ALMEIDA",
    "BAKER",
    "ROMERO",
    "HAN",
    "LEFEBVRE",
    "SASAKI",
    "RICCI",
    "NELSON",
    "HERRERA",
    "FENG",
    "SCHROEDER",
    "VERMA",
    "NIELSEN",
    "CARTER",
    "MORENO",
    "DENG",
    "MICHEL",
    "YOON",
    "MARINO",
    "MITCHELL",
    "MEDINA",
    "CAO",
    "NEUMANN",
    "REDDY",
    "JENSEN",
    "ROBERTS",
    "AGUILAR",
    "PENG",
    "MATSUMOTO",
    "GRECO",
    "TURNER",
    "VARGAS",
    "ZENG",
    "SCHWARZ",
    "NAIR",
    "HANSEN",
    "PHILLIPS",
    "CASTRO",
    "XIAO",
    "BERTRAND",
    "INOUE",
    "BRUNO",
    "CAMPBELL",
    "GUZMAN",
    "TIAN",
    "ZIMMERMANN",
    "IYER",
    "ANDERSEN",
    "PARKER",
    "MENDEZ",
    "DONG",
    "ROUX",
    "KIMURA",
    "GALLO",
    "EVANS",
    "FERNANDEZ",
    "PAN",
    "BRAUN",
    "MENON",
    "JOHANSSON",
    "EDWARDS",
    "MUNOZ",
    "YUAN",
    "VINCENT",
    "HAYASHI",
    "CONTI",
    "COLLINS",
    "SALAZAR",
    "CAI",
    "KRUEGER",
    "BOSE",
    "ANDERSSON",
    "STEWART",
    "SOTO",
    "JIANG",
    "FOURNIER",
    "SHIMIZU",
    "DE LUCA",
    "MORRIS",
    "DELGADO",
    "YU",
    "HARTMANN",
    "CHOPRA",
    "KARLSSON",
    "ROGERS",
    "PENA",
    "DU",
    "MOREL",
    "YAMAZAKI",
    "MANCINI",
    "REED",
    "RIOS",
    "YE",
    "LANGE",
    "MALHOTRA",
    "KOROLENKO",
    "COOK",
    "GUERRERO",
    "CHENG",
    "GIRARD",
    "MORI",
    "COSTANTINO",
    "MURPHY",
    "ORTEGA",
    "WEI",
    "WERNER",
    "KAPOOR",
    "NOWAK",
    "BAILEY",
    "ESTRADA",
    "SU",
    "ANDRE",
    "ABE",
    "GIORDANO",
    "COOPER",
    "SANDOVAL",
    "LU",
    "KRAUSE",
    "KOWALSKI",
    "O'BRIEN",
    "OKAFOR",
    "MENSAH",
    "ABEBE",
    "DIALLO",
    "TRAORE",
    "MWANGI",
    "OTIENO",
    "NKOSI",
    "DLAMINI",
    "HASSAN",
    "IBRAHIM",
    "MOHAMED",
    "SALEH",
    "HADDAD",
    "COHEN",
    "LEVY",
    "MIZRAHI",
    "POPESCU",
    "IONESCU",
    "HORVATH",
    "NAGY",
    "NOVAK",
    "SVOBODA",
    "PAPADOPOULOS",
    "VIRTANEN",
    "KORHONEN",
    "JOVANOVIC",
    "PETROVIC",
    "HORVAT",
    "MELNYK",
    "SHEVCHENKO",
    "PETROV",
    "SMIRNOV",
    "KUZNETSOV",
    "TAMM",
    "VAN DIJK",
    "DE VRIES",
    "BAKKER",
    "JANSEN",
    "PEETERS",
    "MAES",
    "O'CONNOR",
    "KELLY",
    "BYRNE",
    "MACDONALD",
    "SANTIAGO",
    "BAUTISTA",
    "DELA CRUZ",
    "WIDODO",
    "SAPUTRA",
    "TAN",
    "LIM",
    "WONG",
    "CHAN",
    "SUKSAWAT",
];

/// Given names of women, the frequent ones first.
pub const WOMEN: &[&str] = &[
    "MARIA",
    "ANNA",
    "FATIMA",
    "WEI",
    "SARAH",
    "LAURA",
    "JESSICA",
    "YUKI",
    "PRIYA",
    "EMMA",
    "JENNIFER",
    "JULIA",
    "CAMILLE",
    "SOFIA",
    "MIN",
    "LINDA",
    "AISHA",
    "ELENA",
    "OLIVIA",
    "LI",
    "PATRICIA",
    "CHARLOTTE",
    "ISABELLA",
    "LENA",
    "MARIE",
    "JIN",
    "ELIZABETH",
    "NATALIA",
    "CHLOE",
    "LUCIA",
    "SAKURA",
    "ANITA",
    "BARBARA",
    "EVA",
    "GIULIA",
    "MEI",
    "SUSAN",
    "AMINA",
    "CATHERINE",
    "LEA",
    "VALENTINA",
    "FANG",
    "MARGARET",
    "INGRID",
    "MANON",
    "CARMEN",
    "HANA",
    "SUNITA",
    "DOROTHY",
    "KATHARINA",
    "CHIARA",
    "XIU",
    "LISA",
    "ZEYNEP",
    "ALICE",
    "ANA",
    "JI-WOO",
    "NANCY",
    "OLGA",
    "INES",
    "ROSA",
    "AIKO",
    "KAVITA",
    "KAREN",
    "HANNAH",
    "FRANCESCA",
    "YAN",
    "BETTY",
    "ELIF",
    "LOUISE",
    "PAULA",
    "SEO-YEON",
    "HELEN",
    "IRINA",
    "JADE",
    "TERESA",
    "NAOMI",
    "DEEPA",
    "SANDRA",
    "SOPHIE",
    "MARTINA",
    "LAN",
    "DONNA",
    "LEILA",
    "NINA",
    "BEATRIZ",
    "THI",
    "CAROL",
    "SVETLANA",
    "CLARA",
    "PILAR",
    "KEIKO",
    "POOJA",
    "RUTH",
    "JOHANNA",
    "SILVIA",
    "HUI",
    "SHARON",
    "NOOR",
    "MILA",
];

/// Given names of men, the frequent ones first.
pub const MEN: &[&str] = &[
    "MOHAMED",
    "JOSE",
    "WEI",
    "JOHN",
    "DAVID",
    "MICHAEL",
    "JUAN",
    "ALEXANDER",
    "RAJ",
    "JAMES",
    "PIERRE",
    "THOMAS",
    "HIROSHI",
    "ROBERT",
    "CARLOS",
    "JUN",
    "DANIEL",
    "AHMED",
    "MARCO",
    "WILLIAM",
    "LUCAS",
    "PETER",
    "MIN-JUN",
    "LUIS",
    "RICHARD",
    "ALI",
    "MARTIN",
    "JEAN",
    "KENJI",
    "AMIT",
    "CHARLES",
    "STEFAN",
    "ANTONIO",
    "LEI",
    "JOSEPH",
    "OMAR",
    "PAUL",
    "NICOLAS",
    "GIUSEPPE",
    "FRANCISCO",
    "MATTHEW",
    "CHRISTIAN",
    "HUGO",
    "TAKASHI",
    "SANJAY",
    "MARK",
    "ANDREAS",
    "PEDRO",
    "HAO",
    "STEVEN",
    "MUSTAFA",
    "FELIX",
    "ANTOINE",
    "ANDREA",
    "MIGUEL",
    "ANDREW",
    "JAN",
    "LOUIS",
    "AKIRA",
    "VIJAY",
    "KENNETH",
    "MAX",
    "RAFAEL",
    "GANG",
    "KEVIN",
    "YUSUF",
    "JONAS",
    "ARTHUR",
    "LUCA",
    "JORGE",
    "BRIAN",
    "SERGEI",
    "JULES",
    "SATOSHI",
    "ARJUN",
    "GEORGE",
    "FLORIAN",
    "MANUEL",
    "QIANG",
    "EDWARD",
    "HASSAN",
    "ERIK",
    "GABRIEL",
    "MATTEO",
    "RICARDO",
    "RONALD",
    "DMITRI",
    "LEO",
    "NAOKI",
    "RAVI",
    "TIMOTHY",
    "TOBIAS",
    "DIEGO",
    "MING",
    "JASON",
    "EMRE",
    "LARS",
    "ADAM",
    "PAOLO",
    "VAN",
];

/// Special meals and how often each is asked for, in a thousand special meals.
pub const DIETS: &[(&str, u64)] = &[
    ("VGML", 300),
    ("MOML", 180),
    ("AVML", 160),
    ("HNML", 90),
    ("CHML", 80),
    ("KSML", 60),
    ("GFML", 50),
    ("DBML", 30),
    ("LSML", 20),
    ("NLML", 12),
    ("SFML", 8),
    ("BLML", 6),
    ("LPML", 3),
    ("PRML", 1),
];

/// Booking status and how often it occurs, in a thousand segments.
pub const STATUSES: &[(&str, u64)] = &[
    ("HK", 868),
    ("TK", 42),
    ("RR", 30),
    ("HX", 27),
    ("HL", 18),
    ("UN", 7),
    ("SA", 4),
    ("UC", 2),
    ("NO", 1),
    ("WL", 1),
];

/// Forms of payment and how often they occur, in a thousand bookings.
pub const PAYMENTS: &[(&str, u64)] = &[
    ("CCVI", 390),
    ("CCCA", 270),
    ("CASH", 120),
    ("CCAX", 110),
    ("INV", 70),
    ("CCTP", 18),
    ("CCDC", 12),
    ("MISC", 7),
    ("CCJC", 3),
];

/// Cabins with their share in a thousand bookings, their booking classes and what they cost relative to economy, in
/// tenths.
pub const CABINS: &[(&str, u64, &[&str], u64)] = &[
    ("Y", 845, &["V", "Q", "L", "K", "H", "M", "B", "Y", "T", "X", "O", "N", "S", "G"], 10),
    ("W", 55, &["W", "E", "P"], 17),
    ("C", 82, &["C", "D", "Z", "I", "J"], 38),
    ("F", 18, &["A", "F"], 70),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lists_are_well_formed() {
        assert!(WORLD.airports.len() >= 200);
        assert_eq!(AIRPORTS.split_whitespace().count(), WORLD.airports.len() * 5);
        let codes: std::collections::BTreeSet<_> = WORLD.airports.iter().map(|a| a.code).collect();
        assert_eq!(codes.len(), WORLD.airports.len(), "an airport is listed twice");
        assert!(WORLD.airports.iter().all(|a| a.code.len() == 3
            && a.country.len() == 2
            && a.latitude.abs() < 90.0
            && a.longitude.abs() <= 180.0));
        let airlines: std::collections::BTreeSet<_> = WORLD.airlines.iter().map(|a| a.code).collect();
        assert_eq!(airlines.len(), WORLD.airlines.len());
        assert!(WORLD.airlines.iter().all(|a| a.code.len() == 2 && !a.hubs.is_empty() && a.prefix < 1000));
    }

    #[test]
    fn distances_are_those_of_the_earth() {
        let at = |code: &str| WORLD.airports.iter().position(|a| a.code == code).unwrap();
        let distance = WORLD.kilometres(at("LHR"), at("JFK"));
        assert!((5500..5600).contains(&distance), "{distance}");
        assert_eq!(WORLD.kilometres(at("SYD"), at("SYD")), 0);
        assert_eq!(WORLD.kilometres(at("SIN"), at("EZE")), WORLD.kilometres(at("EZE"), at("SIN")));
    }
}
