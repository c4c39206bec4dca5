-- Several tables and everything above the scan.
SELECT a.name, count(*) AS n FROM flights f JOIN airlines a ON a.carrier = f.carrier WHERE f.origin = 'LGA' AND f.month = 6 GROUP BY a.name ORDER BY n DESC, a.name;
SELECT f.carrier, f.flight, p.manufacturer, p.model FROM flights f LEFT JOIN planes p USING (tailnum) WHERE f.month = 11 AND f.day = 28 AND f.origin = 'EWR' AND f.dest = 'SFO' ORDER BY f.flight, f.carrier;
SELECT ap.tzone, count(*) AS n, max(f.distance) FROM flights f JOIN airports ap ON ap.faa = f.dest GROUP BY ap.tzone ORDER BY n DESC;
SELECT faa, name FROM airports WHERE faa IN (SELECT dest FROM flights WHERE distance > 2400 AND origin = 'JFK') ORDER BY faa;
SELECT dest FROM flights GROUP BY dest HAVING count(*) > 15000 EXCEPT SELECT faa FROM airports WHERE tzone = 'America/Chicago' ORDER BY dest;
WITH busy AS (SELECT origin, month, day, count(*) AS n FROM flights GROUP BY origin, month, day) SELECT origin, month, day, n, rank() OVER (PARTITION BY origin ORDER BY n DESC, month, day) AS r FROM busy ORDER BY r, origin LIMIT 9;
SELECT w.origin, round(max(w.wind_speed)::numeric, 1) AS wind, count(DISTINCT f.tailnum) AS planes FROM weather w JOIN flights f ON f.origin = w.origin AND f.time_hour = w.time_hour WHERE w.wind_speed > 40 GROUP BY w.origin ORDER BY w.origin;
SELECT c.carrier, c.name, (SELECT count(*) FROM flights f WHERE f.carrier = c.carrier AND f.dep_delay > 180) AS very_late FROM airlines c ORDER BY very_late DESC, c.carrier LIMIT 6;
SELECT origin, dest, count(*) FROM flights WHERE month = 1 GROUP BY GROUPING SETS ((origin), (origin, dest)) HAVING count(*) > 900 ORDER BY origin, dest NULLS FIRST;
