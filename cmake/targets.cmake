# Flags of all our code, and the two functions that make a folder's library and its tests.
add_library(lt2_flags INTERFACE)
target_include_directories(lt2_flags INTERFACE ${CMAKE_SOURCE_DIR})
target_compile_options(lt2_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers;-march=${LT2_ARCH};-fno-math-errno;-fno-trapping-math>
  $<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda;--expt-relaxed-constexpr;-lineinfo;-Wno-deprecated-gpu-targets>)
target_link_libraries(lt2_flags INTERFACE OpenMP::OpenMP_CXX Threads::Threads)
if(LT2_HAS_CUDA)
  target_compile_definitions(lt2_flags INTERFACE LT2_HAS_CUDA=1)
endif()
if(LT2_WERROR)
  target_compile_options(lt2_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
if(LT2_SANITIZE)
  target_compile_options(lt2_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=address,undefined;-fno-sanitize-recover=all;-fno-omit-frame-pointer>)
  target_link_options(lt2_flags INTERFACE -fsanitize=address,undefined)
endif()

# lt2_library(NAME SOURCES … LINK …)
function(lt2_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(lt2_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(lt2_${name} PUBLIC lt2_flags ${ARG_LINK})
endfunction()

# lt2_test(NAME SOURCES … LINK … [LABELS …] [TIMEOUT seconds]): one executable; ctest sees each of
# its tests.
function(lt2_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LINK;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS fast)
  endif()
  add_executable(${name} ${ARG_SOURCES}
                         $<$<BOOL:${LT2_SANITIZE}>:${CMAKE_SOURCE_DIR}/tests/support/known_leaks.cc>)
  target_link_libraries(${name} PRIVATE lt2_flags ${ARG_LINK} GTest::gtest_main)
  gtest_discover_tests(${name} NO_PRETTY_VALUES PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
                       DISCOVERY_TIMEOUT 60)
endfunction()
