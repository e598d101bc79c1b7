#include <string>

#include "report/html_page.h"

namespace tqcache::report {

namespace {

// Colors are variables, so that pictures follow the color scheme. s0..s7 are series, with different
// hues and a contrast of at least 4.5:1 to the paper; q0..q8 run from the paper color to the most
// prominent one in even steps of lightness, so that they differ even without hues.
constexpr std::string_view kLight = R"css(:root{
color-scheme:light dark;
--paper:#fff;--ink:#1b2027;--muted:#5a6370;--faint:#e3e6ea;--accent:#1d5fa6;
--s0:#1d5fa6;--s1:#b04a0c;--s2:#0b755a;--s3:#8a3c93;--s4:#75620a;--s5:#b3275d;--s6:#2a7186;--s7:#5b5f68;
--q0:#faf4e6;--q1:#f5e3bf;--q2:#f0cd93;--q3:#e8b269;--q4:#db9447;--q5:#c5742f;--q6:#a45622;--q7:#7e3d1b;--q8:#562812;
--on-better:#1d1a16;--on-worse:#fff;--on-middle:#1d1a16}
)css";

constexpr std::string_view kDark = R"css(@media screen and (prefers-color-scheme:dark){:root{
--paper:#13161b;--ink:#e6e9ee;--muted:#9aa4b1;--faint:#2b3038;--accent:#7fb4f2;
--s0:#7fb4f2;--s1:#f2a068;--s2:#55c9a5;--s3:#d79be0;--s4:#d8c154;--s5:#f58fb4;--s6:#74c5da;--s7:#b4bac4;
--q0:#22262d;--q1:#322e31;--q2:#493631;--q3:#64412f;--q4:#824f2e;--q5:#a2622f;--q6:#c67b3c;--q7:#e29e58;--q8:#f8cd8d;
--on-better:#f6f1e9;--on-worse:#15120e;--on-middle:#fff}}
)css";

constexpr std::string_view kPage = R"css(*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif;
overflow-wrap:anywhere}
main{max-width:784px;margin:0 auto;padding:56px 24px 72px}
h1{font-size:30px;line-height:1.2;font-weight:650;letter-spacing:-.015em;margin:0 0 24px}
h2{font-size:20px;line-height:1.3;font-weight:620;letter-spacing:-.008em;margin:0}
dl{display:grid;grid-template-columns:minmax(6em,max-content) 1fr;gap:5px 28px;margin:0;
padding:18px 0;border-top:1px solid var(--faint);border-bottom:1px solid var(--faint);font-size:15px}
dt{color:var(--muted)}
dd{margin:0;unicode-bidi:isolate}
nav{margin-top:20px;font-size:15px}
nav ol{margin:0;padding:0;list-style:none;display:flex;flex-wrap:wrap;gap:4px 22px}
a{color:var(--accent);text-decoration:none}
a:hover{text-decoration:underline}
section{margin-top:60px}
.caption{margin:4px 0 0;max-width:44em;color:var(--muted);font-size:15px}
.note{margin:10px 0 0;color:var(--muted);font-size:14px}
.notes li{margin:6px 0}
.notes ul{margin:12px 0 0;padding-left:1.2em}
:focus-visible{outline:2px solid var(--accent);outline-offset:3px}
)css";

constexpr std::string_view kTables = R"css(.scroll{overflow-x:auto;margin-top:16px;
background:linear-gradient(to right,var(--paper) 24px,transparent) left/72px 100% no-repeat local,
linear-gradient(to left,var(--paper) 24px,transparent) right/72px 100% no-repeat local,
linear-gradient(to right,var(--faint),transparent) left/14px 100% no-repeat scroll,
linear-gradient(to left,var(--faint),transparent) right/14px 100% no-repeat scroll}
table{border-collapse:collapse;width:100%;font-size:14px;line-height:1.4;
font-variant-numeric:tabular-nums}
th,td{padding:8px;text-align:left;vertical-align:baseline;border-bottom:1px solid var(--faint);
overflow-wrap:normal;unicode-bidi:isolate}
th:first-child,td:first-child{padding-left:0}
th:last-child,td:last-child{padding-right:0}
thead th,thead td{font-weight:500;color:var(--muted);vertical-align:bottom;
border-bottom:1px solid var(--muted)}
tbody th{font-weight:550;position:sticky;left:0;background:var(--paper);min-width:5em;
max-width:26em;overflow-wrap:anywhere}
.n{text-align:right;white-space:nowrap}
details{margin-top:14px;font-size:14px}
summary{cursor:pointer;color:var(--accent);width:max-content;max-width:100%}
details .scroll{margin-top:10px;max-height:28em;overflow:auto}
details th,details td{padding-top:4px;padding-bottom:4px}
)css";

constexpr std::string_view kPictures = R"css(.picture{margin-top:16px;overflow-x:auto}
.picture>svg{display:block;width:100%;height:auto}
.narrow{display:none}
.legend{display:flex;flex-wrap:wrap;gap:4px 20px;margin:14px 0 0;padding:0;list-style:none;
font-size:14px;color:var(--ink)}
.legend li{display:flex;align-items:center;gap:7px}
.key{flex:none;overflow:visible}
text{font-size:12px;fill:var(--ink)}
.mid{text-anchor:middle}
.end{text-anchor:end}
.tick{fill:var(--muted);font-variant-numeric:tabular-nums}
.name{fill:var(--muted)}
.label{paint-order:stroke;stroke:var(--paper);stroke-width:3px;stroke-linejoin:round}
.grid{stroke:var(--faint);stroke-width:1}
.axis{stroke:var(--muted);stroke-width:1}
.leader{stroke:var(--muted);stroke-width:.75}
.s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}
.s4{--c:var(--s4)}.s5{--c:var(--s5)}.s6{--c:var(--s6)}.s7{--c:var(--s7)}
.mark{fill:var(--c);stroke:var(--paper);stroke-width:1.25;stroke-linejoin:round}
.curve{fill:none;stroke:var(--c);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.bound{fill:none;stroke:var(--muted);stroke-width:1.25;stroke-dasharray:5 4}
.part{fill:var(--c)}
.words{white-space:pre}
.bar-name{font-size:13px}
.bar-sum{font-size:13px;fill:var(--muted);font-variant-numeric:tabular-nums}
.q0{--c:var(--q0);--on:var(--on-better)}.q1{--c:var(--q1);--on:var(--on-better)}
.q2{--c:var(--q2);--on:var(--on-better)}.q3{--c:var(--q3);--on:var(--on-better)}
.q4{--c:var(--q4);--on:var(--on-better)}.q5{--c:var(--q5);--on:var(--on-middle)}
.q6{--c:var(--q6);--on:var(--on-worse)}.q7{--c:var(--q7);--on:var(--on-worse)}
.q8{--c:var(--q8);--on:var(--on-worse)}
.cell{fill:var(--c)}
.number{fill:var(--on);font-variant-numeric:tabular-nums}
.hatch{stroke:var(--muted);stroke-width:1.5;opacity:.6}
.empty{stroke:var(--faint);stroke-width:1}
)css";

// Narrow columns have their own pictures. Tables may be wider than the column of text, up to the
// right edge of the window. Paper has neither color schemes nor closed details.
constexpr std::string_view kMedia = R"css(@media screen and (max-width:640px){
main{padding:32px 16px 48px}
h1{font-size:25px;margin-bottom:18px}
h2{font-size:18px}
dl{display:block;padding:14px 0}
dd+dt{margin-top:8px}
dt{font-size:13px}
section{margin-top:44px}
tbody th{max-width:11em}
.wide{display:none}
.narrow{display:block}}
@media screen and (min-width:785px){
.scroll{width:max-content;min-width:100%;max-width:calc(50vw + 330px)}
.scroll th:not(:first-child),.scroll td:not(:first-child){padding-left:6px}
.scroll th:not(:last-child),.scroll td:not(:last-child){padding-right:6px}}
@media print{
body{font-size:10.5pt}
main{max-width:none;padding:0}
nav,details:not([open]),summary{display:none}
section{margin-top:28pt}
.picture,.legend,tr{break-inside:avoid}
h2,.caption,.legend{break-after:avoid}
.scroll,.picture,details .scroll{overflow:visible;max-height:none}
tbody th{position:static}
.cell,.part,.mark{-webkit-print-color-adjust:exact;print-color-adjust:exact}}
)css";

}  // namespace

std::string_view html_style() {
  static const std::string style = [] {
    std::string all;
    for (const std::string_view part : {kLight, kDark, kPage, kTables, kPictures, kMedia})
      all += part;
    return all;
  }();
  return style;
}

}  // namespace tqcache::report
